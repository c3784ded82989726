"""The process from which all others are forked: it imports once, while the driver plans.

Light, so that it starts before the driver's own imports.
"""

import multiprocessing
from multiprocessing import forkserver

PRELOADED = ["clients.bulk.scoring", "onnxruntime", "pyarrow.parquet"]

CONTEXT = multiprocessing.get_context("forkserver")


def start() -> None:
    """Returns at once."""
    CONTEXT.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
