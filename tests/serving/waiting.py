import time
from collections.abc import Callable

HEAL_S = 60.0  # measured on two cores: 3 to 8 s


def wait_until(condition: Callable[[], object], what: str, seconds: float = HEAL_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not {what} within {seconds:g} s"
        time.sleep(0.1)
