"""Portions of images in, checked batches of one size out."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from clients.errors import InvalidImage

Images = NDArray[np.uint8]


def split(images: Images, shape: tuple[int, ...], size: int) -> Iterator[Images]:
    """uint8 (n, *shape) -> views of at most `size` images; raises InvalidImage for other arrays."""
    if not _is_batch(images, shape):
        raise _refusal(images, shape)
    return (images[start : start + size] for start in range(0, len(images), size))


def gather(portions: Iterable[Images], shape: tuple[int, ...], size: int) -> Iterator[Images]:
    """uint8 images (*shape) and batches (n, *shape) -> batches of `size`, the last shorter; raises InvalidImage.

    The images are copied, so callers may reuse their arrays.
    """
    batcher = _Batcher(shape, size)
    for portion in portions:
        yield from batcher.add(portion)
    yield from batcher.rest()


async def gather_async(
    portions: Iterable[Images] | AsyncIterable[Images], shape: tuple[int, ...], size: int
) -> AsyncIterator[Images]:
    batcher = _Batcher(shape, size)
    async for portion in as_async(portions):
        for batch in batcher.add(portion):
            yield batch
    for batch in batcher.rest():
        yield batch


async def as_async(items: Iterable[Images] | AsyncIterable[Images]) -> AsyncIterator[Images]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


@dataclass
class _Batcher:
    shape: tuple[int, ...]
    size: int
    count: int = 0
    batch: Images = field(init=False)

    def add(self, portion: Images) -> Iterator[Images]:
        images = portion[np.newaxis] if isinstance(portion, np.ndarray) and portion.shape == self.shape else portion
        if not _is_batch(images, self.shape):
            raise _refusal(portion, self.shape)
        while len(images):
            if self.count == 0:
                self.batch = np.empty((self.size, *self.shape), dtype=np.uint8)
            taken = images[: self.size - self.count]
            self.batch[self.count : self.count + len(taken)] = taken
            self.count += len(taken)
            images = images[len(taken) :]
            if self.count == self.size:
                self.count = 0
                yield self.batch

    def rest(self) -> Iterator[Images]:
        if self.count:
            yield self.batch[: self.count]


def _is_batch(images: object, shape: tuple[int, ...]) -> bool:
    return isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.shape[1:] == shape


def _refusal(images: object, shape: tuple[int, ...]) -> InvalidImage:
    found = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
    return InvalidImage(f"images: expected uint8 (n, {', '.join(map(str, shape))}), found {found}")
