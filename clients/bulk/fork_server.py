"""Starts the process from which workers are forked. It imports the workers' libraries once, while the driver plans.

This module imports little, so that the process starts before the driver imports its own libraries.
"""

import multiprocessing
import tempfile
from multiprocessing import forkserver

PRELOADED = ["clients.bulk.scoring", "onnxruntime", "pyarrow.parquet"]

CONTEXT = multiprocessing.get_context("forkserver")


def start() -> None:
    """Starts the process and does not wait for its imports. Raises OSError."""
    CONTEXT.set_forkserver_preload(PRELOADED)
    try:
        forkserver.ensure_running()
    except OSError as error:
        if error.errno:
            raise
        folder = tempfile.gettempdir()  # the path of a socket has at most 107 bytes
        raise OSError(f"{folder}: expected a shorter path for sockets, found {error}: TMPDIR names another") from error
