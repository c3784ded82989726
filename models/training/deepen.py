"""Adds blocks to a transformer's weights that change no answer until they learn: state dict -> state dict.

Chen et al., "Net2Net: Accelerating Learning via Knowledge Transfer", 2016.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

OUTPUTS = ("attention.out.weight", "attention.out.bias", "ffn.linear2.weight", "ffn.linear2.bias")


def deepen(weights: Mapping[str, Tensor], depth: int) -> dict[str, Tensor]:
    """Inserts copies of the second last block before the last block, up to `depth` blocks; the copies output 0.

    Weights of fewer than two blocks, or of `depth` blocks and more, stay as they are.
    """
    blocks: dict[int, dict[str, Tensor]] = {}
    grown: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name.startswith("blocks."):
            _, place, inner = name.split(".", 2)
            blocks.setdefault(int(place), {})[inner] = tensor
        else:
            grown[name] = tensor
    if not 2 <= len(blocks) < depth:
        return dict(weights)
    *before, last = (blocks[index] for index in sorted(blocks))
    for index, block in enumerate([*before, *[_silent(before[-1])] * (depth - len(blocks)), last]):
        grown |= {f"blocks.{index}.{inner}": tensor for inner, tensor in block.items()}
    return grown


def _silent(block: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy of the block whose attention and FFN output 0."""
    silent = {inner: tensor.clone() for inner, tensor in block.items()}
    for inner, tensor in silent.items():
        if inner in OUTPUTS:
            tensor.zero_()
        elif inner.startswith("attention.qkv.") and OUTPUTS[0] not in block:  # a single head as wide as the tokens
            tensor.tensor_split(3)[2].zero_()  # the values
    return silent
