"""Files that one process of a test run makes for all."""

import fcntl
from collections.abc import Callable
from pathlib import Path


def make_once(path: Path, make: Callable[[Path], object]) -> Path:
    """What one process makes while the others wait; nobody changes it."""
    path.parent.mkdir(exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            part = path.with_name(f"part-{path.name}")
            make(part)
            part.rename(path)
    return path
