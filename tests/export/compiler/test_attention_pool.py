"""Pools of nn.MultiheadAttention, as SigLIP's: few queries, and scores of three axes, images and heads on the first."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import torch
from foreign_networks import DIM, Encoder, Vision, draw, export, model, proof_fails, proved, written
from torch import Tensor, nn

from export.compiler.passes.absorbed_attention import Absorber
from export.compiler.pipeline import Rewritten, rewrite

pytestmark = pytest.mark.slow

MASK = "attention_mask"


class Pool(nn.Module):
    """`probes` queries that all images share, of which `read` are read."""

    def __init__(self, heads: int, probes: int, read: int) -> None:
        super().__init__()
        self.read = read
        self.probe = nn.Parameter(torch.randn(1, probes, DIM))
        self.attention = nn.MultiheadAttention(DIM, heads, batch_first=True)
        nn.init.uniform_(self.attention.in_proj_bias, -0.5, 0.5)
        self.norm, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        y: Tensor = self.attention(self.probe.repeat(x.shape[0], 1, 1), x, x, key_padding_mask=hidden)[0]
        y = y + self.down(torch.tanh(self.up(self.norm(y))))
        return y[:, -self.read :].flatten(1)


class PooledVision(Vision):
    def __init__(self, heads: int = 4, probes: int = 1, read: int = 1) -> None:
        super().__init__(depth=1)
        self.pool = Pool(heads, probes, read)
        draw(self)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, None)
        made: Tensor = self.pool(self.last(x))
        return made


class PooledText(Encoder):
    def __init__(self, heads: int = 4, probes: int = 1, read: int = 1) -> None:
        super().__init__("hidden", depth=1)
        self.attention_pool = Pool(heads, probes, read)
        draw(self)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        made: Tensor = self.attention_pool(super().forward(input_ids, attention_mask), attention_mask == 0)
        return made


def absorbed(original: onnx.ModelProto) -> Rewritten:
    rewritten = rewrite(model(original), sizes={"batch": 1, "seq": 24})
    (sites,) = (step.sites for step in rewritten.steps if step.name == "absorb-queries")
    assert [site.operator for site in sites] == ["Softmax"]
    return rewritten


@cache
def pooled_text() -> onnx.ModelProto:
    """The older exporter fixes the number of tokens."""
    return export(PooledText(), "new", 20)


SIZES = [(4, 1, 1), (4, 3, 3), (4, 3, 1), (1, 2, 2)]


@pytest.mark.parametrize(("sizes", "opset"), [*zip(SIZES, [14, 17] * 2, strict=True)])
def test_a_pool_of_images_makes_no_keys_and_values(sizes: tuple[int, int, int], opset: int) -> None:
    """Another test gives the newer exporter a pool of texts."""
    original = export(PooledVision(*sizes), "old", opset)
    assert proved(model(original), absorbed(original).model).error < 1e-13


def test_a_pool_of_texts_keeps_its_mask() -> None:
    original = pooled_text()
    assert proved(model(original), absorbed(original).model).error < 1e-13


@pytest.mark.parametrize("only", [("tidy",), ("read-rows", "absorb-queries", "tidy")])
def test_a_pool_of_texts_is_packed(only: tuple[str, ...], tmp_path: Path) -> None:
    made = written(pooled_text(), tmp_path, only=only, packed=MASK)
    assert made.rewritten.steps[-1].sites
    assert made.proofs[0].error < 1e-12


def swap_images_and_heads(self: Absorber, value: ir.Value, width: int) -> ir.Value:
    turned = self.nodes.transpose(value, [1, 0, 2, 3])
    return self.nodes.reshape(turned, [-1, self.parts.queries, width])


def test_images_and_heads_in_the_other_order_fail_the_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Absorber, "_with_original_axes", swap_images_and_heads)
    proof_fails(export(PooledVision()), tmp_path)
