"""A small decoder as of Llama, with a cache of keys and values, exported by both of PyTorch's exporters."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from foreign_networks import traced
from numpy.typing import NDArray
from torch import Tensor, nn

WORDS, DIM, HEADS, GROUPS, SIZE, DEPTH = 40, 16, 4, 2, 4, 2
PAST = [f"past_key_values.{layer}.{kind}" for layer in range(DEPTH) for kind in ("key", "value")]
PRESENT = [name.replace("past_key_values", "present") for name in PAST]
INPUTS = ["input_ids", "attention_mask", "position_ids"]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(DIM) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.q, self.out = nn.Linear(DIM, HEADS * SIZE, bias=False), nn.Linear(HEADS * SIZE, DIM, bias=False)
        self.k, self.v = (nn.Linear(DIM, GROUPS * SIZE, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(DIM, 2 * DIM, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * DIM, DIM, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor, past: list[Tensor]) -> tuple[Tensor, ...]:
        b, n, _ = x.shape
        h = self.norm1(x)
        q, k, v = (layer(h).view(b, n, -1, SIZE).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = (rotated(each, *turn) for each in (q, k))
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        wide_k, wide_v = (each.repeat_interleave(HEADS // GROUPS, 1) for each in (k, v))
        scores = q @ wide_k.transpose(2, 3) * SIZE**-0.5 + mask
        h = (scores.softmax(-1) @ wide_v).transpose(1, 2).reshape(b, n, HEADS * SIZE)
        x = x + self.out(h)
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), k, v


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, DIM)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(DEPTH)), Norm()
        self.head = nn.Linear(DIM, WORDS, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.5)

    def forward(self, ids: Tensor, mask: Tensor, positions: Tensor, past: list[Tensor]) -> tuple[Tensor, ...]:
        n, old = ids.shape[1], past[0].shape[2]
        angles = positions[:, :, None].to(torch.float32) * torch.tensor([1.0, 0.1])
        angles = torch.cat([angles, angles], -1)[:, None]
        seen = torch.arange(old + n)[None, :] <= torch.arange(n)[:, None] + old
        seen = seen[None, None] & (mask[:, None, None, :] > 0)
        hidden = torch.where(seen, 0.0, -1e4)
        x, made = self.words(ids), []
        for number, layer in enumerate(self.layers):
            x, *cache = layer(x, (angles.cos(), angles.sin()), hidden, past[2 * number : 2 * number + 2])
            made += cache
        return self.head(self.norm(x)), *made


def export(exporter: str = "new", opset: int = 18) -> onnx.ModelProto:
    ids = torch.randint(0, WORDS, (2, 5))
    past = [torch.randn(2, GROUPS, 3, SIZE) for _ in PAST]
    arguments = (ids, torch.ones(2, 8, dtype=torch.int64), torch.arange(3, 8).repeat(2, 1), past)
    old, new, both = {0: "batch", 2: "past"}, {0: "batch", 1: "new"}, {0: "batch", 1: "total"}
    axes = [new, both, new, [old] * len(PAST)]
    return traced(Decoder().eval(), arguments, axes, [*INPUTS, *PAST], ["logits", *PRESENT], exporter, opset)


def feeds(batch: int, new: int, past: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """The second row starts with a masked token."""
    rng = np.random.default_rng(seed)
    mask = np.ones((batch, past + new), np.int64)
    mask[1:, : min(1, past + new - 1)] = 0
    cache = {name: rng.standard_normal((batch, GROUPS, past, SIZE)).astype(np.float32) for name in PAST}
    positions = np.clip(mask.cumsum(1) - 1, 0, None)[:, past:]
    ids = rng.integers(0, WORDS, (batch, new))
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **cache}


def check_answers(expected: dict[str, NDArray[Any]], found: dict[str, NDArray[Any]]) -> None:
    """The same outputs in the same order, to 1e-5 of the largest number of each."""
    assert list(found) == list(expected)
    for name, array in found.items():
        assert array.shape == expected[name].shape, name
        np.testing.assert_allclose(array, expected[name], atol=1e-5 * np.abs(expected[name]).max(initial=1))
