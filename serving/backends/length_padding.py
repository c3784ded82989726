"""Batches requests of different lengths: pads them to the longest, and cuts the padding off the outputs.

In: the parameter `joined_lengths` of config.pbtxt, JSON that a publication wrote after it had proved that padding
changes no answer of the model; the inputs of requests. Out: the requests of each batch, the batch's inputs, each
request's outputs. Triton's native backend ignores the parameter and batches only equal shapes.
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
# Numbers in the padded tensors of a batch: 64 MB of int64. A larger request runs alone.
MOST_PADDED = 1 << 23


@dataclass(frozen=True)
class LengthPadding:
    """How to pad a model's requests to one length.

    mask:     name of the attention mask (texts, tokens); also in `inputs`.
    inputs:   names of the inputs (texts, tokens, ...), which are padded with zeros; the mask so that it hides padding.
    outputs:  names of the outputs (texts, tokens, ...), whose padding is cut off.
    left:     padding stands before a text, not after it.
    features: numbers per token, in `inputs` and `outputs` together.
    hides:    the mask is true for hidden tokens, not for visible.
    Raises ValueError.
    """

    mask: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    left: bool
    features: int
    hides: bool = False

    def __post_init__(self) -> None:
        if not all(isinstance(name, str) for name in (*self.inputs, *self.outputs)) or self.mask not in self.inputs:
            raise ValueError(f"inputs {self.inputs}, outputs {self.outputs}, mask {self.mask!r}")
        if not isinstance(self.left, bool) or not isinstance(self.features, int) or self.features < 1:
            raise ValueError(f"left {self.left!r}, features {self.features!r}")
        if not isinstance(self.hides, bool):
            raise ValueError(f"hides {self.hides!r}")

    @classmethod
    def from_json(cls, text: str) -> LengthPadding:
        """Reads the parameter. Raises ValueError, KeyError or TypeError for other JSON."""
        fields = json.loads(text)
        names = {field: tuple(fields[field]) for field in ("inputs", "outputs")}
        return cls(**{**fields, **names})

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def groups(self, requests: Sequence[Inputs]) -> list[list[int]]:
        """Positions of the requests of each batch. A batch's padded tensors have at most MOST_PADDED numbers."""
        positions_of: dict[Hashable, list[int]] = defaultdict(list)
        alone: list[list[int]] = []
        for position, inputs in enumerate(requests):
            if self._has_equal_lengths(inputs):
                positions_of[self._batch_key(inputs)].append(position)
            else:
                alone.append([position])
        batches = (batch for positions in positions_of.values() for batch in self._bounded(requests, positions))
        return [*alone, *batches]

    def join(self, requests: Sequence[Inputs]) -> Inputs:
        """The batch's inputs, padded to the longest request."""
        longest = max(map(self._length, requests))
        return {
            name: np.concatenate([self._padded(name, inputs[name], longest) for inputs in requests])
            for name in requests[0]
        }

    def unpad(self, request: Inputs, outputs: Outputs) -> Outputs:
        """Cuts the outputs of padding tokens off the request's rows of the batch's outputs."""
        length = self._length(request)
        return {
            name: value[:, self._text_slice(length, value.shape[1])] if name in self.outputs else value
            for name, value in outputs.items()
        }

    def _length(self, inputs: Inputs) -> int:
        return int(inputs[self.mask].shape[1])

    def _padded(self, name: str, value: Array, length: int) -> Array:
        if name not in self.inputs or value.shape[1] == length:
            return value
        padded = np.full((len(value), length, *value.shape[2:]), self.hides and name == self.mask, value.dtype)
        padded[:, self._text_slice(value.shape[1], length)] = value
        return padded

    def _text_slice(self, length: int, padded_length: int) -> slice:
        """Where the `length` tokens of a text stand among `padded_length` tokens."""
        return slice(padded_length - length, padded_length) if self.left else slice(length)

    def _batch_key(self, inputs: Inputs) -> Hashable:
        """A key that requests share if they may run in one batch.

        They may differ in the number of texts and, if each mask hides nothing but padding, in the number of tokens.
        """
        hides_padding_alone = self._is_padding_mask((inputs[self.mask] != 0) != self.hides)
        return hides_padding_alone, tuple(
            (name, value.shape[2:] if hides_padding_alone and name in self.inputs else value.shape[1:])
            for name, value in sorted(inputs.items())
        )

    def _has_equal_lengths(self, inputs: Inputs) -> bool:
        """Whether all padded inputs have the mask's numbers of texts and tokens. Triton does not check this."""
        return inputs[self.mask].ndim == 2 and len({inputs[name].shape[:2] for name in self.inputs}) == 1

    def _is_padding_mask(self, visible: Array) -> bool:
        """Whether each text of bool (texts, tokens) is visible tokens, then padding; the reverse if `left`."""
        if not visible.shape[1]:
            return False
        visible = visible[:, ::-1] if self.left else visible
        return bool(visible[:, 0].all() and (visible[:, :-1] >= visible[:, 1:]).all())

    def _bounded(self, requests: Sequence[Inputs], positions: Sequence[int]) -> list[list[int]]:
        """Divides requests, from short to long, into batches of at most MOST_PADDED numbers."""
        groups, rows = list[list[int]](), 0
        for position in sorted(positions, key=lambda position: self._length(requests[position])):
            mask = requests[position][self.mask]
            rows += len(mask)
            tokens = mask.shape[1]  # an attention mask of a text has tokens x tokens numbers
            if not groups or rows * tokens * max(self.features, tokens) > MOST_PADDED:
                groups.append([])
                rows = len(mask)
            groups[-1].append(position)
        return groups


def is_proved(lengths: LengthPadding, version_dir: Path) -> bool:
    """Whether the version's manifest proves `lengths`: config.pbtxt is shared with other versions of the model."""
    try:
        text = read_manifest(version_dir / MANIFEST_FILE).get(PARAMETER)
        return text is not None and LengthPadding.from_json(text) == lengths
    except (Damaged, ValueError, KeyError, TypeError):
        return False
