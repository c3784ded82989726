"""Divides images into batches, a batch for each request.

In: arrays of any number of images, whose dtype and shape are checked. Out: batches of equal size, the last may be
smaller.
"""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from clients.errors import InvalidImage

Images = NDArray[np.uint8]


def split(images: Images, shape: tuple[int, ...], size: int) -> Iterator[Images]:
    """uint8 images (n, *shape) -> views (b, *shape), b at most `size`.

    Raises InvalidImage at the call if dtype or shape differ.
    """
    if not _is_batch(images, shape):
        raise _refusal(images, shape)
    return (images[start : start + size] for start in range(0, len(images), size))


def gather(arrays: Iterable[Images], shape: tuple[int, ...], size: int) -> Iterator[Images]:
    """uint8 images (*shape) and arrays of images (n, *shape), mixed -> batches (size, *shape), the last may be smaller.

    The images are copied, so callers may reuse their arrays. Raises InvalidImage for another dtype or shape.
    """
    batcher = _Batcher(shape, size)
    for array in arrays:
        yield from batcher.add(array)
    yield from batcher.last()


async def gather_async(
    arrays: Iterable[Images] | AsyncIterable[Images], shape: tuple[int, ...], size: int
) -> AsyncIterator[Images]:
    """As `gather`, for asyncio."""
    batcher = _Batcher(shape, size)
    async for array in as_async(arrays):
        for batch in batcher.add(array):
            yield batch
    for batch in batcher.last():
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
    """Collects images until a batch is full. `count`: images in the batch that is being filled."""

    shape: tuple[int, ...]
    size: int
    count: int = 0
    batch: Images = field(init=False)

    def add(self, array: Images) -> Iterator[Images]:
        images = array[np.newaxis] if isinstance(array, np.ndarray) and array.shape == self.shape else array
        if not _is_batch(images, self.shape):
            raise _refusal(array, self.shape)
        while len(images):
            if self.count == 0:
                self.batch = np.empty((self.size, *self.shape), dtype=np.uint8)
            fitting = images[: self.size - self.count]
            self.batch[self.count : self.count + len(fitting)] = fitting
            self.count += len(fitting)
            images = images[len(fitting) :]
            if self.count == self.size:
                self.count = 0
                yield self.batch

    def last(self) -> Iterator[Images]:
        if self.count:
            yield self.batch[: self.count]


def _is_batch(images: object, shape: tuple[int, ...]) -> bool:
    return isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.shape[1:] == shape


def _refusal(images: object, shape: tuple[int, ...]) -> InvalidImage:
    kind = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
    return InvalidImage(f"images: expected uint8 (n, {', '.join(map(str, shape))}), found {kind}")
