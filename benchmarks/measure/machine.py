from __future__ import annotations

import os


def cores() -> int:
    return len(os.sched_getaffinity(0))
