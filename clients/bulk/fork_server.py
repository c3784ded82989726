"""Starts the process from which workers are forked. It imports the workers' libraries once, while the driver plans.

This module imports little, so that the process starts before the driver imports its own libraries.
"""

import multiprocessing
from multiprocessing import forkserver

PRELOADED = ["clients.bulk.scoring", "onnxruntime", "pyarrow.parquet"]

CONTEXT = multiprocessing.get_context("forkserver")


def start() -> None:
    """Starts the process and does not wait for its imports."""
    CONTEXT.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
