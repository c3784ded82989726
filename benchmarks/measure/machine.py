from __future__ import annotations

import os


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
