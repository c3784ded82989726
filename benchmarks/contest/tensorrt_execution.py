"""A TensorRT engine through its own execution context, as a server runs it.

In: an engine with a profile for each batch size, and a CUDA stream. Out: a function of images on the device. Memory is
allocated once for a batch size; a call only sets addresses and enqueues.
"""

from __future__ import annotations

from typing import Any, Protocol

from models.config import INPUT_NAME, OUTPUT_NAME


class Stream(Protocol):
    """A torch.cuda.Stream; only its handle is used."""

    cuda_stream: int


class Execution:
    """uint8 images (B, C, H, W) -> float32 logits (B, classes), both on the device; the next call overwrites them.

    It returns before the device is done. Raises KeyError for a batch size without a profile, and RuntimeError where
    TensorRT refuses.
    """

    def __init__(self, engine: Any, batches: tuple[int, ...], stream: Stream) -> None:
        self.engine, self.stream = engine, stream
        self.profiles = {batch: number for number, batch in enumerate(batches)}
        self.prepared: dict[int, tuple[Any, Any]] = {}

    def __call__(self, images: Any) -> Any:
        if len(images) not in self.prepared:
            self.prepared[len(images)] = self._prepare(images)
        context, logits = self.prepared[len(images)]
        context.set_tensor_address(INPUT_NAME, images.data_ptr())
        _demand(context.execute_async_v3(self.stream.cuda_stream), "to enqueue the engine")
        return logits

    def _prepare(self, images: Any) -> tuple[Any, Any]:
        import torch

        context = self.engine.create_execution_context()
        if context is None:
            raise RuntimeError("TensorRT: expected memory for an execution context, found none")
        profile = self.profiles[len(images)]
        _demand(context.set_optimization_profile_async(profile, self.stream.cuda_stream), f"profile {profile}")
        _demand(context.set_input_shape(INPUT_NAME, tuple(images.shape)), f"images {tuple(images.shape)}")
        classes = tuple(self.engine.get_tensor_shape(OUTPUT_NAME))[-1]
        logits = torch.empty(len(images), classes, device=images.device)
        _demand(context.set_tensor_address(OUTPUT_NAME, logits.data_ptr()), "an address for the logits")
        return context, logits


def _demand(accepted: bool, what: str) -> None:
    if not accepted:
        raise RuntimeError(f"TensorRT: expected it to take {what}, found a refusal (its own message stands above)")
