"""Faults planted in packing fail the proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from foreign_networks import Encoder, export, model, proof_fails, written
from masked_networks import MASK, SIZES, Biased, Convolved, Disentangled, Masked
from packed_graphs import of_heads, repeated

from export.compiler.analyses import masked_entries, token_axes, token_mixing
from export.compiler.errors import NothingToRewrite
from export.compiler.passes import pack, packed_indices, packed_loop_body
from export.compiler.pipeline import rewrite


def forget_first_token(patch: pytest.MonkeyPatch) -> None:
    right = packed_indices._keeps_all
    patch.setattr(packed_indices, "_keeps_all", lambda nodes, is_shown, picked: right(nodes, is_shown, []))


def believe_weights(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(masked_entries, "SUNK", 0.5)


def forget_order(patch: pytest.MonkeyPatch) -> None:
    def zeros(loop: Any, size: ir.Value) -> ir.Value:
        difference: ir.Value = loop.full.add("Sub", [right(loop, size), right(loop, size)])
        return difference

    right = pack._Loop._range
    patch.setattr(pack._Loop, "_range", zeros)


def trust_sums(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(token_mixing, "_summed", lambda node, roles, places: token_mixing.Join(done={*places}))


def forget_zeros(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packed_loop_body.Body, "hides", lambda self, value: False)


@pytest.mark.parametrize(
    ("network", "fault"),
    [
        (Masked("absolute", "cls"), forget_first_token),
        (Biased(), believe_weights),
        (Masked("absolute", "summed"), trust_sums),
        (Masked(), forget_zeros),
        (Masked(), forget_order),
    ],
)
def test_a_planted_fault_fails_the_proof(
    network: Encoder, fault: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fault(monkeypatch)
    proof_fails(export(network), tmp_path, packed=MASK)


def test_tokens_mistaken_for_rows_of_another_input_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_entries.MaskedEntries, "is_of_text", lambda self, dim: self.texts_in(dim) is None)
    with pytest.raises(NothingToRewrite, match="it may join hidden tokens"):
        rewrite(model(export(Convolved())), sizes=SIZES, packed=MASK)


@pytest.mark.parametrize("of_a_table", [False, True])
def test_a_value_repeated_for_the_heads_of_other_texts_fails_the_proof(
    of_a_table: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def of_others(
        body: packed_loop_body.Body, value: ir.Value, axis: int, heads: int, sizes: list[int | ir.Value]
    ) -> ir.Value:
        shape = [1] * (len(sizes) + 1)
        shape[axis] = heads
        each = body.nodes.add("Expand", [body.nodes.unsqueeze(value, [axis]), body.nodes.integers(shape)])
        return body.nodes.reshape(each, sizes)

    monkeypatch.setattr(packed_loop_body.Body, "_for_heads", of_others)
    proof_fails(export(Disentangled()) if of_a_table else of_heads(), tmp_path, packed=MASK)


def test_a_sum_over_a_value_repeated_for_hidden_tokens_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    total = "shown = Mul(made, floats) total = ReduceSum(shown, one)"
    nodes = f"{total} wide = Expand(total, each) r = Relu(wide) y = ReduceSum<keepdims = 0>(r, one)"
    with pytest.raises(NothingToRewrite, match=r"y \(ReduceSum\): it may read hidden tokens"):
        written(repeated(nodes), tmp_path, packed=MASK)
    monkeypatch.setattr(token_axes, "_is_long", lambda *axis: False)
    proof_fails(repeated(nodes), tmp_path, packed=MASK)
