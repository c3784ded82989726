from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from raw_server import answering, reply


@pytest.fixture
def interrupt() -> Callable[[int, float], None]:
    """In the third batch."""
    batches = []

    def interrupt(images: int, loss: float) -> None:
        batches.append(loss)
        if len(batches) == 3:
            raise KeyboardInterrupt

    return interrupt


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    import random_networks
    from saved_networks import TINY

    return random_networks.saved(tmp_path / "tiny.safetensors", TINY, {"test_accuracy": 0.5})


@pytest.fixture
def serve() -> Iterator[Callable[[dict[str, bytes]], tuple[str, list[str]]]]:
    """Mirrors path -> content; returns base URL and growing list of requests."""
    with ExitStack() as running:

        def start(contents: dict[str, bytes]) -> tuple[str, list[str]]:
            requests: list[str] = []

            def answer(path: str) -> list[bytes]:
                requests.append(path)
                return [reply(contents[path]) if path in contents else reply(b"", "404 Not Found")]

            return f"http://{running.enter_context(answering(answer))}", requests

        yield start
