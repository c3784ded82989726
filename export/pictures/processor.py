"""A processor: how a picture is cropped, resized and normalised before a network reads it.

In: the values of `--mean`, `--std`, `--crop` and `--resize`. Out: a `Processor`; PublishError for wrong numbers.
`ProcessorJson` reads the fields of a processor's JSON.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.preprocessing_settings import Framing
from export.errors import PublishError

Size = tuple[int, int]  # height, width
Array = NDArray[Any]

BYTE = 1 / 255


@dataclass(frozen=True)
class Processor:
    """A level x from 0 to 255 of a channel becomes (factor * x - mean) / std.

    `mean` and `std`: a number for each channel, or for all. `framing`: how a picture is resized. `size`: height and
    width that are cut from the middle of the resized picture. `bgr`: the network reads blue first. Raises PublishError
    for numbers that are not finite, and for `std` or `factor` that is not positive.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    framing: Framing
    size: Size
    factor: float = BYTE
    bgr: bool = False

    def __post_init__(self) -> None:
        numbers = (*self.mean, *self.std, self.factor)
        if not all(math.isfinite(number) for number in numbers) or min(*self.std, self.factor) <= 0:
            raise PublishError(f"expected finite numbers, and a spread above 0, found {self.mean} and {self.std}")

    @property
    def scale(self) -> Array:
        """a in a x + b, the same normalisation: float64 (1, C, 1, 1) or (1, 1, 1, 1)."""
        return _per_channel(self.factor / np.array(self.std))

    @property
    def shift(self) -> Array:
        """b in a x + b, the same normalisation: float64 (1, C, 1, 1) or (1, 1, 1, 1)."""
        return _per_channel(-np.array(self.mean) / np.array(self.std))

    def apply(self, images: NDArray[np.uint8], dtype: type[np.floating[Any]]) -> Array:
        """uint8 (n, C, H, W) -> the network's input, same shape, computed in `dtype` in the order of processors."""
        levels = images[:, ::-1] if self.bgr else images
        scaled = levels.astype(dtype) * dtype(self.factor)
        mean, std = (_per_channel(np.array(numbers)).astype(dtype) for numbers in (self.mean, self.std))
        return np.asarray((scaled - mean) / std)


def _per_channel(numbers: Array) -> Array:
    """float64 (1, C, 1, 1); (1, 1, 1, 1) if all numbers are equal, which broadcasts to any number of channels."""
    numbers = numbers[:1] if len(set(numbers.tolist())) == 1 else numbers
    return numbers.astype(np.float64).reshape(1, -1, 1, 1)


def from_options(mean: tuple[float, ...], std: tuple[float, ...], crop: float, resample: str, size: Size) -> Processor:
    """`mean`, `std`: of levels from 0 to 1. `crop`: the share of the resized picture's sides that is cut from it."""
    return Processor(mean, std, centred(size, crop, resample), size)


def centred(size: Size, crop: float, resample: str) -> Framing:
    """As timm's "center": the resized picture has sides `size` / `crop`. `resample`: the filter."""
    resized = math.floor(size[0] / crop), math.floor(size[1] / crop)
    return Framing("short side" if resized[0] == resized[1] else "cover", resized, resample, "timm")


class ProcessorJson:
    """Reads the fields of a processor's JSON object. All methods raise PublishError for a wrong value.

    `source`: the file's name, for errors. `keys`: those that are read or known to change no pixel; an object with
    another key is refused, because it might change pixels.
    """

    def __init__(self, source: str, values: Mapping[str, Any], keys: Collection[str]) -> None:
        self.source, self.values = source, values
        if unknown := sorted(values.keys() - {*keys}):
            raise self.refusal(unknown[0], "a key that is known", "another")

    def refusal(self, key: str, expected: str, found: object) -> PublishError:
        return PublishError(f"{self.source}: {key}: expected {expected}, found {found}")

    def flag(self, key: str, default: bool) -> bool:
        """Null means false, as in transformers."""
        value = self.values.get(key, default)
        if value is not None and not isinstance(value, bool):
            raise self.refusal(key, "true or false", repr(value))
        return bool(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; null means the default."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.refusal(key, "a number above 0", repr(value))
        return float(value)

    def numbers(self, key: str, above: float = -math.inf) -> tuple[float, ...]:
        """A number for all channels or three numbers, all finite and above `above`."""
        value = self.values.get(key)
        items = value if isinstance(value, list) else [value]
        numbers = [float(item) for item in items if isinstance(item, int | float) and not isinstance(item, bool)]
        if len(numbers) < len(items) or len(items) not in (1, 3):
            raise self.refusal(key, "one number, or one for each of three channels", repr(value))
        if not all(above < number < math.inf for number in numbers):  # NaN too
            raise self.refusal(key, "finite numbers" + (" above 0" if above == 0 else ""), repr(value))
        return tuple(numbers)

    def side(self, key: str, value: object) -> int:
        """Checks that `value`, a part of the field `key`, is a picture's side in pixels."""
        if type(value) is not int or not 1 <= value <= 1 << 14:
            raise self.refusal(key, "a number of pixels", repr(value))
        return value
