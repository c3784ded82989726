"""Small encoders with a mask in the forms of published families."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
import torch.nn.functional as F
from foreign_networks import DIM, HEADS, VOCABULARY, Block, Encoder, draw, session_of
from numpy.typing import NDArray
from torch import Tensor, nn

from export.compiler.proof.masks import KINDS, MANY, draw_masks

LOWEST = torch.finfo(torch.float32).min
LONGEST = 128
MASK = "attention_mask"
SIZES = {"batch": 1, "seq": 24}

Array = NDArray[Any]


def masked_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    shown = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * shown).sum(1) / shown.sum(1).clamp(min=1e-9)


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    half = DIM // HEADS // 2
    left, right = x[..., :half], x[..., half:]
    return x * angle.cos() + torch.cat([-right, left], -1) * angle.sin()


class Masked(Encoder):
    """`form`: absolute positions, these gathered, positions counted by the mask, these selected by flattened numbers,
    rotary, a table of relative positions, causal, or local windows. `pool`: mean, cls, last, shown (the last token that
    the mask shows), gathered, max, filled, put, placed, sparse, weighed, or hidden.
    """

    size = -1  # features of a head

    def __init__(self, form: str = "absolute", pool: str = "mean", depth: int = 2) -> None:
        super().__init__(pool, depth=depth)
        self.form, self.heads = form, HEADS
        self.places = nn.Embedding(LONGEST, DIM)
        self.apart = nn.Embedding(2 * LONGEST, HEADS)
        self.eval()

    def bias(self, mask: Tensor) -> Tensor:
        n = mask.shape[1]
        places = torch.arange(n)
        apart = places[None, :] - places[:, None]
        shown = mask[:, None, None, :].bool()
        if self.form == "causal":
            shown = shown & (apart <= 0)[None, None]
        if self.form == "local":
            shown = shown & (apart.abs() <= 2)[None, None]
        bias = torch.where(shown, 0.0, LOWEST)
        if self.form == "relative":
            bias = bias + self.apart(apart + LONGEST).permute(2, 0, 1)[None]
        return bias

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(input_ids)
        if self.form == "absolute":
            x = x + self.places(torch.arange(input_ids.shape[1]))
        if self.form == "counted":
            x = x + self.places(attention_mask.cumsum(1) * attention_mask)
        if self.form == "gathered":  # as GPT-J takes sines
            numbers = torch.arange(input_ids.shape[1])[None, :, None].repeat(1, 1, DIM)
            x = x + torch.gather(self.places.weight[None], 1, numbers)
        if self.form == "selected":
            numbers = (attention_mask.cumsum(1) * attention_mask).view(-1)
            x = x + self.places.weight.index_select(0, numbers).view(*input_ids.shape, -1)
        bias = self.bias(attention_mask)
        for block in self.blocks:
            assert isinstance(block, Block)
            x = self.block(block, x, bias)
        return self.pooled(x, attention_mask)

    def block(self, block: Block, x: Tensor, bias: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = (layer(x).view(b, n, self.heads, self.size).transpose(1, 2) for layer in block.qkv.children())
        mixed = self.mixed(*self.turned(q, k, v), bias)
        x = block.norm1(x + block.out(mixed.transpose(1, 2).reshape(b, n, d)))
        made: Tensor = block.norm2(x + block.down(F.gelu(block.up(x))))
        return made

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        """Values (B, heads, N, D) by the weights of the attention."""
        return F.softmax(q @ k.transpose(2, 3) * 0.35 + bias, -1) @ v

    def turned(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, heads, N, D) as the attention takes them."""
        if self.form == "rotary":
            angle = torch.arange(q.shape[2])[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001]).repeat(2)
            q, k = rotated(q, angle), rotated(k, angle)
        return q, k, v

    def pooled(self, x: Tensor, mask: Tensor) -> Tensor:
        made: Tensor
        match self.pool:
            case "cls":
                made = self.head(x[:, 0])
            case "last":
                made = self.head(x[:, -1])
            case "shown":
                made = self.head(x[torch.arange(x.shape[0]), mask.sum(1) - 1])
            case "max":
                made = x.masked_fill(mask.unsqueeze(-1) == 0, -1e9).amax(1)
            case "gathered":  # the last token of sentence-transformers, padded left or right
                found, place = mask.flip(1).max(1)
                last = (x.shape[1] - torch.where(found == 0, x.shape[1] - 1, place) - 1).clamp(min=0)
                wide = last.unsqueeze(-1).repeat(1, x.shape[2]).unsqueeze(1)
                made = self.head(torch.gather(x * mask.unsqueeze(-1), 1, wide).squeeze(1))
            case "filled" | "put":  # as sentence-transformers write it
                hidden = mask.unsqueeze(-1).expand(x.size()).to(x.dtype) == 0
                if self.pool == "put":
                    x = x.clone()
                    x[hidden] = -1e9
                else:
                    x = torch.where(hidden, torch.full_like(x, -1e9), x)
                made = x.max(1)[0]
            case "placed":
                x = x.clone()
                x[mask == 0] = -1e9
                made = x.max(1)[0]
            case "sparse":
                made = (torch.log(1 + torch.relu(x)) * mask.unsqueeze(-1)).amax(1)
            case "weighed":
                weights = F.softmax(x[..., 0] + (1 - mask.to(x.dtype)) * -1e9, 1)
                made = torch.einsum("bn,bnd->bd", weights, x)
            case "summed":
                made = torch.einsum("bnd->bd", x)
            case "plain":
                made = x.mean(1)
            case "hidden":
                made = x
            case _:
                made = masked_mean(x, mask)
        return made


class Biased(Masked):
    """A mask whose hidden tokens keep a weight."""

    def bias(self, mask: Tensor) -> Tensor:
        return (1.0 - mask[:, None, None, :].to(torch.float32)) * -3.0


class Filled(Masked):
    """Products of filled tokens are as large as what hides them."""

    def bias(self, mask: Tensor) -> Tensor:
        return (1.0 - mask[:, None, None, :].to(torch.float32)) * -1e9

    def block(self, block: Block, x: Tensor, bias: Tensor) -> Tensor:
        return super().block(block, x.masked_fill(bias[:, 0, 0, :, None] < 0, -1e9), bias)


class Divided(Masked):
    """CodeGen's: scores are divided behind the mask, which adds `least` or more."""

    def __init__(self, by: float, pool: str = "mean", least: float = LOWEST, depth: int = 2) -> None:
        super().__init__("causal", pool, depth)
        self.by, self.least = by, least

    def bias(self, mask: Tensor) -> Tensor:
        return super().bias(mask).clamp(min=self.least)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return F.softmax((q @ k.transpose(2, 3) + bias) / self.by, -1) @ v


class Rectified(Masked):
    """Its weights are those of a ReLU, divided by the number of tokens."""

    size = DIM // HEADS  # no size follows from texts without tokens

    def bias(self, mask: Tensor) -> Tensor:
        return mask[:, None, None, :].to(torch.float32)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return F.relu(q @ k.transpose(2, 3) * 0.35) * bias / bias.sum(-1, keepdim=True).clamp(min=1) @ v


class Viewed(Masked):
    """GPT-2's: the mask's length is that of all texts, divided by their number."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return super().forward(input_ids, attention_mask.view(input_ids.shape[0], -1))


class Shallow(Masked):
    """Hides by the lowest float16: a row that sees no token has the same number everywhere."""

    def bias(self, mask: Tensor) -> Tensor:
        return super().bias(mask).clamp(min=-65504.0)


class Grouped(Viewed):
    """GPT-2's with keys and values that queries share, which are repeated."""

    def turned(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, heads, n, d = q.shape
        k, v = (each[:, :1, None].expand(b, 1, heads, n, d).reshape(q.shape) for each in (k, v))
        return q, k, v


class Turned(Masked):
    """Phi-3's: the features that are turned, all of them, are joined to the others."""

    def turned(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        wide = DIM // self.heads
        q, k = (torch.cat([each[..., :wide].tanh(), each[..., wide:]], -1) for each in (q, k))
        return q, k, v


class Sunk(Masked):
    """A learned score of each head takes some of the weight, as of GPT-OSS: `behind` the keys, or before them."""

    def __init__(self, behind: bool = True, pool: str = "mean", depth: int = 2) -> None:
        super().__init__("absolute", pool, depth)
        self.behind, self.sinks = behind, nn.Parameter(torch.linspace(-1, 2, HEADS))
        self.eval()

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        sinks = self.sinks.view(1, -1, 1, 1).expand(q.size(0), self.heads, q.size(2), 1)
        scores = q @ k.transpose(2, 3) * 0.35 + bias
        every = torch.cat([scores, sinks] if self.behind else [sinks, scores], -1)
        weights = F.softmax(every - every.max(-1, keepdim=True).values, -1)
        return (weights[..., :-1] if self.behind else weights[..., 1:]) @ v


class Joined(Masked):
    """Texts and heads on a single axis, as decoders for pictures and speech have them."""

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        b, heads, n, _ = q.shape
        q, k, v = (each.flatten(0, 1) for each in (q, k, v))
        return torch.bmm(self.weights(q, k, bias), v).view(b, heads, n, -1)

    def weights(self, q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
        """(B * heads, N, N)"""
        scores = (torch.bmm(q, k.transpose(1, 2)) * 0.35).view(bias.size(0), self.heads, q.size(1), k.size(1)) + bias
        return F.softmax(scores.view(q.size(0), q.size(1), k.size(1)), -1)


class Disentangled(Joined):
    """DeBERTa's: scores of tokens with places come from tables that are repeated for each text; beside them stands a
    number for each distance. `in_turn`: for each head in turn, so that a text's heads do not stand together.
    """

    def __init__(self, pool: str = "mean", in_turn: bool = False, depth: int = 2) -> None:
        super().__init__("absolute", pool, depth)
        self.in_turn = in_turn
        shape = (2, HEADS, 7, DIM // HEADS)
        self.near = nn.Parameter(torch.arange(math.prod(shape)).sin().reshape(shape))
        self.eval()

    def weights(self, q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
        b, n = bias.size(0), q.size(1)
        places = torch.arange(n)
        apart = (places[:, None] - places[None, :] + 3).clamp(0, 6)[None].expand(b * self.heads, n, n)
        scores = torch.bmm(q, k.transpose(1, 2)) - 0.1 * (places[:, None] - places[None, :]).abs()
        scores = scores + torch.gather(torch.bmm(q, self.table(0, b)), -1, apart)
        scores = scores + torch.gather(torch.bmm(k, self.table(1, b)), -1, apart).transpose(1, 2)
        shown = (scores * 0.35).view(b, self.heads, n, n).masked_fill(bias < 0, LOWEST)
        return F.softmax(shown, -1).view(b * self.heads, n, n)

    def table(self, which: int, texts: int) -> Tensor:
        near = self.near[which].transpose(1, 2)
        if self.in_turn:
            return near[:, None].expand(-1, texts, -1, -1).reshape(texts * self.heads, *near.shape[1:])
        return near.repeat(texts, 1, 1)


class Convolved(Masked):
    """Reads of a token its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(DIM, DIM, 3, padding=1)
        draw(self)

    def block(self, block: Block, x: Tensor, bias: Tensor) -> Tensor:
        return super().block(block, self.conv(x.transpose(1, 2)).transpose(1, 2), bias)


def feeds(texts: int, length: int, seed: int, mask: Array | None = None) -> dict[str, Array]:
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, (texts, length))
    return {"input_ids": ids, MASK: draw_masks(texts, length, seed, KINDS) if mask is None else mask}


def check(proto: onnx.ModelProto, packed: ir.Model, rounds: int = 25, shown: bool = False) -> None:
    before, after = session_of(proto), session_of(packed)
    rng = np.random.default_rng(0)
    sizes = [
        (1, 1),
        (1, 2),
        (3, 1),
        MANY,
        *((int(rng.integers(1, 9)), int(rng.integers(1, 30))) for _ in range(rounds)),
    ]
    for seed, (texts, length) in enumerate(sizes):
        given = feeds(texts, length, seed)
        expected, found = before.run(None, given)[0], after.run(None, given)[0]
        if shown:
            expected = np.where(given[MASK].astype(bool)[..., None], expected, 0)
        assert found.shape == expected.shape
        size = np.abs(expected).max(initial=1, where=np.isfinite(expected))
        assert np.allclose(found, expected, atol=2e-5 * size, rtol=0, equal_nan=True), (texts, length, seed)


def hiding(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The network with a boolean mask that is true for hidden tokens, as nn.TransformerEncoder has."""
    next(value for value in proto.graph.input if value.name == MASK).type.tensor_type.elem_type = onnx.TensorProto.BOOL
    for node in proto.graph.node:
        node.input[:] = ["visible" if name == MASK else name for name in node.input]
    proto.graph.node.insert(0, onnx.helper.make_node("Not", [MASK], ["seen"]))
    proto.graph.node.insert(1, onnx.helper.make_node("Cast", ["seen"], ["visible"], to=onnx.TensorProto.INT64))
    return proto
