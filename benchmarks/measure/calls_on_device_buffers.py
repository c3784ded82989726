"""Timed calls on images in device memory. Several buffers take turns: each call reads other images than the last."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from export.precision_table import Device

if TYPE_CHECKING:
    from benchmarks.measure.candidate import Classify
    from export.compare_logits import Images, Logits

BUFFERS = 4


class Calls:
    """Calls of a candidate: each classifies the next `batch` of `images`, uint8 (n, C, H, W), and waits for the device.

    `counted`: how many of the `device_ms` belong to rounds that count.
    """

    def __init__(self, run: Classify, images: Images, batch: int, device: Device) -> None:
        self.run, self.device = run, device
        self.buffers = [_place(part, device) for part in _split(images, batch)]
        self.batches = cycle(self.buffers)
        self.pinned: Any = None
        self.ahead: Any = None
        self.device_ms: list[float] = []
        """The time of each call on CUDA, between two events. The host's clock also counts the launches and the wait."""
        self.counted = 0

    def __call__(self) -> Any:
        if self.device == "cpu":
            return self.run(next(self.batches))
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        logits = self.run(next(self.batches))
        end.record()
        torch.cuda.synchronize()
        self.device_ms.append(begin.elapsed_time(end))
        return logits

    def forget(self) -> None:
        """Drops all times."""
        self.device_ms.clear()
        self.counted = 0

    def end_round(self, counts: bool) -> None:
        """Drops the round's `device_ms` if the round does not count."""
        if not counts:
            del self.device_ms[self.counted :]
        self.counted = len(self.device_ms)

    def with_copies(self) -> None:
        """CUDA only: a call that copies its images from pinned host memory, and its logits back to pinned memory."""
        import torch

        images, logits = self._next_pinned()
        logits.copy_(self.run(images.to(self.device, non_blocking=True)), non_blocking=True)
        torch.cuda.current_stream().synchronize()

    def overlapped(self) -> None:
        """As `with_copies`, but the images were copied during the last call, on another stream."""
        import torch

        if self.ahead is None:
            self.copying = torch.cuda.Stream()
            self.ahead = self._copied()
            self.copying.synchronize()
        (images, logits), self.ahead = self.ahead, self._copied()
        logits.copy_(self.run(images), non_blocking=True)
        torch.cuda.current_stream().synchronize()
        self.copying.synchronize()

    def _copied(self) -> tuple[Any, Any]:
        import torch

        images, logits = self._next_pinned()
        with torch.cuda.stream(self.copying):
            return images.to(self.device, non_blocking=True), logits

    def _next_pinned(self) -> tuple[Any, Any]:
        if self.pinned is None:
            self.pinned = cycle(
                [(images.cpu().pin_memory(), self.run(images).cpu().pin_memory()) for images in self.buffers]
            )
        pinned: tuple[Any, Any] = next(self.pinned)
        return pinned


def classify(run: Classify, images: Images, batch: int, device: Device) -> Logits:
    """Classifies images uint8 (n, C, H, W) in calls of `batch`; logits float32 (n, classes), both on the host."""
    parts = [_fetch(run(_place(part, device)), device) for part in _split(images, batch)]
    logits: Logits = np.concatenate(parts)
    return logits


def _split(images: Images, size: int) -> list[Images]:
    return [images[start : start + size] for start in range(0, len(images), size)]


def _place(images: Images, device: Device) -> Any:
    if device == "cpu":
        return images
    import torch

    return torch.from_numpy(images).to(device)


def _fetch(logits: Any, device: Device) -> Logits:
    fetched: Logits = logits if device == "cpu" else logits.cpu().numpy()
    return fetched
