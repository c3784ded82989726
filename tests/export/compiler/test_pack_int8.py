"""Packing and int8: files of fixed scales are packed, those of run-time scales refused, packed files quantised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from foreign_networks import export
from masked_networks import MASK, Masked, feeds
from numpy.typing import NDArray
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from export.compiler.errors import NothingToRewrite, ProofFailed
from export.compiler.passes import packed_loop_body
from export.compiler.proof.masks import SEEN, draw_masks
from export.compiler.proof.runner import AS_WRITTEN, Runner
from export.rewrite_file import Request, rewrite_file

PRODUCTS = ["MatMul", "Gemm"]

Feeds = dict[str, NDArray[Any]]


def shown(texts: int, length: int, seed: int) -> Feeds:
    """No text is hidden whole."""
    return feeds(texts, length, seed, draw_masks(texts, length, seed, SEEN))


class Reader:
    def __init__(self) -> None:
        self.given: Iterator[Feeds] = (shown(5, 16, seed) for seed in range(4))

    def get_next(self) -> Feeds | None:
        return next(self.given, None)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    onnx.save(export(Masked("absolute", "mean")), path := tmp_path / "in.onnx")
    return path


def with_fixed_scales(plain: Path, form: QuantFormat = QuantFormat.QDQ, operators: list[str] | None = PRODUCTS) -> Path:
    path = plain.with_name("int8.onnx")
    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(plain, path, Reader(), quant_format=form, op_types_to_quantize=operators, **kinds)
    return path


def test_a_file_of_fixed_scales_is_packed_to_the_bit(plain: Path) -> None:
    path = with_fixed_scales(plain)
    written = rewrite_file(path, out := plain.with_name("out.onnx"), Request(packed=MASK))
    assert [proof.beside for proof in written.proofs] == [
        "the original, both without ONNX Runtime's optimiser",
        "the original without ONNX Runtime's optimiser",
    ]
    before, after = (Runner(each, level=AS_WRITTEN) for each in (path, out))
    for seed, (texts, length) in enumerate([(5, 9), (1, 4), (40, 12)]):
        given = shown(texts, length, seed)
        expected, found = before(given)["y"], after(given)["y"]
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_hidden_tokens_that_keep_an_integer_fail_the_proof(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 of a quantised value is its zero point. The error names what helps if a step of rounding is the cause."""
    path = with_fixed_scales(plain)
    monkeypatch.setattr(packed_loop_body.Body, "hides", lambda self, value: False)
    with pytest.raises(ProofFailed, match="rewrite the float file and quantise the result"):
        rewrite_file(path, plain.with_name("out.onnx"), Request(packed=MASK))


@pytest.mark.parametrize("form", ["absolute", "relative"])
def test_tables_of_integers_are_packed(form: str, tmp_path: Path) -> None:
    """Of numbers that a loop reads ONNX Runtime ended its process."""
    onnx.save(export(Masked(form, "mean")), plain := tmp_path / "plain.onnx")
    quantize_dynamic(plain, path := tmp_path / "int8.onnx", op_types_to_quantize=["Gather"])
    written = rewrite_file(path, tmp_path / "out.onnx", Request(packed=MASK))
    assert "DequantizeLinear" in {node.op_type for node in written.rewritten.model.graph.all_nodes()}


def test_one_scale_of_all_tokens_is_refused(plain: Path) -> None:
    quantize_dynamic(plain, path := plain.with_name("int8.onnx"), weight_type=QuantType.QInt8)
    with pytest.raises(NothingToRewrite, match=r"\(DynamicQuantizeLinear\): its scale is of all tokens"):
        rewrite_file(path, plain.with_name("out.onnx"), Request(packed=MASK))


@pytest.mark.parametrize(
    ("form", "operators", "named"),
    [
        (QuantFormat.QDQ, None, r"Softmax\): .*; quantise with op_types_to_quantize=\['MatMul'\]"),
        (QuantFormat.QOperator, PRODUCTS, r"QLinearMatMul\)"),
    ],
)
def test_other_integers_are_refused_by_name(
    plain: Path, form: QuantFormat, operators: list[str] | None, named: str
) -> None:
    """Quantised, a mask no longer hides: -10,000 and the scores have one scale."""
    path = with_fixed_scales(plain, form, operators)
    with pytest.raises(NothingToRewrite, match=rf"pack: .*\({named}"):
        rewrite_file(path, plain.with_name("out.onnx"), Request(packed=MASK))


def test_weights_in_blocks_are_refused_by_name(plain: Path) -> None:
    """ONNX Runtime makes MatMulNBits of them, and in a branch it misses their weights."""
    quantiser = MatMulNBitsQuantizer(onnx.load(plain), block_size=16, quant_format=QuantFormat.QDQ)
    quantiser.process()
    quantiser.model.save_model_to_file(str(path := plain.with_name("int4.onnx")))
    with pytest.raises(NothingToRewrite, match=r"\(DequantizeLinear\): .*; as MatMulNBits"):
        rewrite_file(path, plain.with_name("out.onnx"), Request(packed=MASK))


def test_a_packed_file_is_quantised_as_well_as_the_padded(plain: Path) -> None:
    """Against float32: each part of the texts has its own scales."""
    rewrite_file(plain, packed := plain.with_name("packed.onnx"), Request(packed=MASK))
    given, answers = shown(40, 12, 0), {}
    for file in (plain, packed):
        path = file.with_name(f"int8-{file.name}")
        inside = {"EnableSubgraph": True}
        quantize_dynamic(file, path, op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8, extra_options=inside)
        answers[file] = Runner(path)(given)["y"]
    expected = Runner(plain)(given)["y"]
    errors = {file: np.abs(found - expected).max() / np.abs(expected).max() for file, found in answers.items()}
    assert 1e-4 < errors[packed] <= 1.5 * errors[plain]
