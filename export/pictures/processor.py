"""How a network wants its pictures: what options say, and what a processor's JSON is read with.

In: `--mean`, `--std`, `--crop`, `--resize`, or a JSON object. Out: a `Processor`; PublishError for wrong numbers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.framing import Framing
from export.errors import PublishError

Size = tuple[int, int]  # height, width
Array = NDArray[Any]

BYTE = 1 / 255


@dataclass(frozen=True)
class Processor:
    """A level x from 0 to 255 of a channel becomes (factor * x - mean) / std.

    `mean` and `std`: of each channel, or one for all. `size`: what is cut from the middle. `bgr`: the network reads
    blue first.
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
        """float64 (1, C or 1, 1, 1)."""
        return _wide(self.factor / np.array(self.std))

    @property
    def shift(self) -> Array:
        return _wide(-np.array(self.mean) / np.array(self.std))

    def apply(self, images: NDArray[np.uint8], dtype: type[np.floating[Any]]) -> Array:
        """uint8 (n, C, H, W) -> the network's input, computed in `dtype` in a processor's order."""
        levels = images[:, ::-1] if self.bgr else images
        scaled = levels.astype(dtype) * dtype(self.factor)
        return np.asarray((scaled - _wide(np.array(self.mean)).astype(dtype)) / _wide(np.array(self.std)).astype(dtype))


def _wide(numbers: Array) -> Array:
    """(1, channels, 1, 1), or (1, 1, 1, 1) for equal numbers, which fit any number of channels."""
    numbers = numbers[:1] if len(set(numbers.tolist())) == 1 else numbers
    return numbers.astype(np.float64).reshape(1, -1, 1, 1)


def from_options(mean: tuple[float, ...], std: tuple[float, ...], crop: float, resample: str, size: Size) -> Processor:
    """`mean`, `std`: of levels from 0 to 1. `crop`: the middle's share of the resized picture's sides."""
    return Processor(mean, std, centred(size, crop, resample), size)


def centred(size: Size, crop: float, resample: str) -> Framing:
    """As timm's "center": the middle `crop` of the picture."""
    wide = math.floor(size[0] / crop), math.floor(size[1] / crop)
    return Framing("short side" if wide[0] == wide[1] else "cover", wide, resample, "timm")


class Held:
    """A JSON object whose keys must all be known: what is not read might change pixels."""

    def __init__(self, source: str, values: Mapping[str, Any], known: Collection[str]) -> None:
        self.source, self.values = source, values
        if unknown := sorted(values.keys() - {*known}):
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
        given = self.values.get(key)
        value = default if given is None else given
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.refusal(key, "a number above 0", repr(value))
        return float(value)

    def numbers(self, key: str, above: float = -math.inf) -> tuple[float, ...]:
        value = self.values.get(key)
        listed = value if isinstance(value, list) else [value]
        plain = [float(each) for each in listed if isinstance(each, int | float) and not isinstance(each, bool)]
        if len(plain) < len(listed) or len(listed) not in (1, 3):
            raise self.refusal(key, "one number, or one for each of three channels", repr(value))
        if not all(above < number < math.inf for number in plain):  # NaN too
            raise self.refusal(key, "finite numbers" + (" above 0" if above == 0 else ""), repr(value))
        return tuple(plain)

    def side(self, key: str, value: object) -> int:
        if type(value) is not int or not 1 <= value <= 1 << 14:
            raise self.refusal(key, "a number of pixels", repr(value))
        return value
