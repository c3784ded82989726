"""Starts the process from which workers are forked. It imports the workers' libraries once, while the driver plans.

This module imports little, so that the process starts before the driver imports its own libraries.
"""

import multiprocessing
import signal
import tempfile
from multiprocessing import forkserver, resource_tracker

PRELOADED = ["clients.bulk.scoring", "onnxruntime", "pyarrow.parquet"]

CONTEXT = multiprocessing.get_context("forkserver")


def start() -> None:
    """Starts the process and does not wait for its imports. Raises OSError.

    The process inherits that SIGINT waits: Ctrl-C during its imports would print their traceback.
    """
    CONTEXT.set_forkserver_preload(PRELOADED)
    try:
        resource_tracker.ensure_running()  # `forkserver` starts it too, which would end the wait
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except OSError as error:
        if error.errno:
            raise
        folder = tempfile.gettempdir()  # the path of a socket has at most 107 bytes
        raise OSError(f"{folder}: expected a shorter path for sockets, found {error}: TMPDIR names another") from error
