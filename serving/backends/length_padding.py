"""Joins requests of different lengths: pads them as a client would, and cuts the answers to the requests' lengths.

In: what a publication has proved of a model and written as JSON into the parameter `joined_lengths` of config.pbtxt,
and the inputs of requests. Out: which requests run together, their joined inputs, the part of the answers for each.
Triton's native backend ignores the parameter and joins only equal shapes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from common.repository import MANIFEST_FILE, Damaged, read_manifest
from serving.backends.batching import Array, Inputs, Outputs

PARAMETER = "joined_lengths"
# Numbers in the padded tensors of a joined run, 64 MB of int64. A request of more runs alone.
MOST_PADDED = 1 << 23


@dataclass(frozen=True)
class LengthPadding:
    """`inputs` and `outputs` are (texts, tokens, ...); `mask` (texts, tokens) is one of `inputs`.

    `left`: padding stands before a text. `features`: numbers per token, in `inputs` and `outputs` together. Raises
    ValueError.
    """

    mask: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    left: bool
    features: int

    def __post_init__(self) -> None:
        if not all(isinstance(name, str) for name in (*self.inputs, *self.outputs)) or self.mask not in self.inputs:
            raise ValueError(f"inputs {self.inputs}, outputs {self.outputs}, mask {self.mask!r}")
        if not isinstance(self.left, bool) or not isinstance(self.features, int) or self.features < 1:
            raise ValueError(f"left {self.left!r}, features {self.features!r}")

    @classmethod
    def from_json(cls, text: str) -> LengthPadding:
        """Reads the parameter. Raises ValueError, KeyError or TypeError for other JSON."""
        held = json.loads(text)
        lists = {name: tuple(held[name]) for name in ("inputs", "outputs")}
        return cls(**{**held, **lists})

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def groups(self, requests: Sequence[Inputs]) -> list[list[int]]:
        """Positions of requests that run together. A group's padded tensors have at most MOST_PADDED numbers."""
        like: dict[Hashable, list[int]] = defaultdict(list)
        alone: list[list[int]] = []
        for position, inputs in enumerate(requests):
            if self._is_even(inputs):
                like[self._kind(inputs)].append(position)
            else:
                alone.append([position])
        return alone + [group for positions in like.values() for group in self._bounded(requests, positions)]

    def join(self, requests: Sequence[Inputs]) -> Inputs:
        """The requests' inputs in one batch, padded with zeros to the longest request."""
        longest = max(map(self._length, requests))
        return {
            name: np.concatenate([self._padded(name, inputs[name], longest) for inputs in requests])
            for name in requests[0]
        }

    def unpad(self, request: Inputs, outputs: Outputs) -> Outputs:
        """The request's outputs, from its rows of the joint outputs, without the outputs for padding."""
        length = self._length(request)
        return {
            name: value[:, self._place(length, value.shape[1])] if name in self.outputs else value
            for name, value in outputs.items()
        }

    def _length(self, inputs: Inputs) -> int:
        return int(inputs[self.mask].shape[1])

    def _padded(self, name: str, value: Array, length: int) -> Array:
        if name not in self.inputs or value.shape[1] == length:
            return value
        padded = np.zeros((len(value), length, *value.shape[2:]), value.dtype)
        padded[:, self._place(value.shape[1], length)] = value
        return padded

    def _place(self, length: int, padded: int) -> slice:
        """The place of a text of `length` tokens among `padded` tokens."""
        return slice(padded - length, padded) if self.left else slice(length)

    def _kind(self, inputs: Inputs) -> Hashable:
        """A key that requests share if they differ only in rows and, where their masks hide only padding, in tokens."""
        pads = self._is_padded(inputs[self.mask] != 0)
        return pads, tuple(
            (name, value.shape[2:] if pads and name in self.inputs else value.shape[1:])
            for name, value in sorted(inputs.items())
        )

    def _is_even(self, inputs: Inputs) -> bool:
        """Whether all inputs have as many texts and tokens as the mask; Triton hands over other requests, too."""
        return inputs[self.mask].ndim == 2 and len({inputs[name].shape[:2] for name in self.inputs}) == 1

    def _is_padded(self, shown: Array) -> bool:
        """Whether each text begins with a shown token and has hidden tokens only at its end; `left`: from its end."""
        if not shown.shape[1]:
            return False
        shown = shown[:, ::-1] if self.left else shown
        return bool(shown[:, 0].all() and (shown[:, :-1] >= shown[:, 1:]).all())

    def _bounded(self, requests: Sequence[Inputs], positions: Sequence[int]) -> list[list[int]]:
        """Divides requests, from short to long, into groups of at most MOST_PADDED numbers."""
        groups, rows = list[list[int]](), 0
        for position in sorted(positions, key=lambda each: self._length(requests[each])):
            mask = requests[position][self.mask]
            rows += len(mask)
            tokens = mask.shape[1]  # attention masks of a text have the square of it
            if not groups or rows * tokens * max(self.features, tokens) > MOST_PADDED:
                groups.append([])
                rows = len(mask)
            groups[-1].append(position)
        return groups


def is_proved(lengths: LengthPadding, version_dir: Path) -> bool:
    """Whether the publication of this version proved it: config.pbtxt may tell of other versions of the model."""
    try:
        told = read_manifest(version_dir / MANIFEST_FILE).get(PARAMETER)
        return told is not None and LengthPadding.from_json(told) == lengths
    except (Damaged, ValueError, KeyError, TypeError):
        return False
