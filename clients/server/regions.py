"""Shared memory between a client and a server on one host.

A region is a file in /dev/shm: a batch of images, then their logits. It is removed on closing, on collection and at
exit; after SIGKILL by Python's resource tracker.
"""

import os
import secrets
import weakref
from collections.abc import Sequence
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.errors import ClientError

PREFIX = "vitbn-"
_ALIGNMENT = 64  # bytes
_FLOAT_BYTES = 4


class Region:
    """Raises ClientError when memory is short: writing to missing pages would kill client and server."""

    def __init__(self, rows: int, image_bytes: int, classes: int) -> None:
        self.name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        self.key = f"/{self.name}"
        self.logits_offset = -(-rows * image_bytes // _ALIGNMENT) * _ALIGNMENT
        self._classes = classes
        self.size = self.logits_offset + self.logits_bytes(rows)
        try:
            self._memory = SharedMemory(self.name, create=True, size=self.size)
            self.remove = weakref.finalize(self, _remove, self._memory, os.getpid())
            try:
                _reserve(self.name, self.size)
            except OSError:
                self.remove()
                raise
        except OSError as error:
            raise ClientError(f"expected {self.size} bytes of shared memory in /dev/shm, found {error}") from error

    def logits_bytes(self, rows: int) -> int:
        return rows * self._classes * _FLOAT_BYTES

    def write(self, batch: NDArray[np.uint8]) -> None:
        np.ndarray(batch.shape, np.uint8, self._memory.buf)[:] = batch
        self._logits((len(batch), self._classes))[:] = np.nan  # old logits must not pass for an answer

    def read(self, shape: Sequence[int]) -> NDArray[np.float32]:
        """Raises TypeError for too large a shape."""
        return self._logits(shape).copy()

    def _logits(self, shape: Sequence[int]) -> NDArray[np.float32]:
        return np.ndarray(shape, np.float32, self._memory.buf, self.logits_offset)


def _reserve(name: str, size: int) -> None:
    with Path("/dev/shm", name).open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _remove(memory: SharedMemory, owner: int) -> None:
    """Does nothing in a forked child: the region belongs to the parent."""
    if os.getpid() == owner:
        memory.close()
        try:
            memory.unlink()
        except FileNotFoundError:  # removed by another process
            resource_tracker.unregister(f"/{memory.name}", "shared_memory")
