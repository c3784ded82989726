from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from foreign_networks import Encoder, export, manifest_of, run

from export.compiler.errors import NotSupported, ProofFailed
from export.compiler.proof.compare import Errors, Proof
from export.compiler.proof.runner import Array, session

FEEDS = {"input_ids": np.arange(28).reshape(4, 7), "attention_mask": np.ones((4, 7), np.int64)}


def converted() -> onnx.ModelProto:
    """float32 outside, float16 inside, with Casts between."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of weights cut to what float16 holds
        proto: onnx.ModelProto = convert_float_to_float16(export(Encoder()), keep_io_types=True)
    return proto


def halved() -> onnx.ModelProto:
    return export(Encoder().half())


@pytest.mark.slow
@pytest.mark.parametrize("make", [converted, halved])
def test_a_float16_file_is_proved_beside_float64(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(make(), path)
    manifest = manifest_of(path, "-o", out)
    double, half = manifest["proofs"]
    assert (double["precision"], double["tolerance"]) == ("float64", 1e-10)
    assert (half["precision"], half["tolerance"], half["beside"]) == ("float16", 5e-3, "the original in float64")
    assert manifest["rewrites"] == ["read-rows", "tidy"]
    weights = [value.const_value for value in ir.load(out).graph.initializers.values()]
    assert not any(weight is not None and weight.dtype == ir.DataType.FLOAT and weight.size > 1 for weight in weights)
    before, after = (ort.InferenceSession(file).run(None, FEEDS)[0].astype(np.float64) for file in (path, out))
    assert np.abs(before - after).max() <= 1e-2 * np.abs(before).max()


def compared(exact: Array, found: Array, original: Array, precision: str) -> Proof:
    comparison = Errors(precision, "the original in float64")
    comparison.add([exact], [found], [original])
    return comparison.proof()


def test_another_row_fails_the_proof_in_float16(tmp_path: Path) -> None:
    onnx.save(halved(), tmp_path / "in.onnx")
    runner = session(tmp_path / "in.onnx")
    answer, other = (runner.run(None, {**FEEDS, "input_ids": FEEDS["input_ids"] + more})[0] for more in (0, 1))
    exact = answer.astype(np.float64)
    assert compared(exact, answer, answer, "float16").error == 0
    with pytest.raises(ProofFailed, match="float16: output 0: expected an error of at most 5e-03"):
        compared(exact, other, answer, "float16")
    widened = compared(1.01 * exact, answer, answer, "float16")
    assert widened.tolerance == pytest.approx(2e-2, rel=0.02)
    assert widened.own == pytest.approx(9.9e-3, rel=0.01)
    assert "where the original's own is 9.9e-03 (at most 2e-02, beside the original in float64)" in str(widened)
    with pytest.raises(NotSupported, match="the file itself, beside its answers in float64"):
        compared(1.1 * exact, answer, answer, "float16")


def test_an_original_that_is_too_coarse_in_float32_is_refused(tmp_path: Path) -> None:
    onnx.save(export(Encoder()), tmp_path / "in.onnx")
    answer = session(tmp_path / "in.onnx").run(None, FEEDS)[0]
    for off, allowed in ((1e-6, 1e-5), (2e-5, 4e-5), (2e-4, 4e-4)):
        proof = compared((1 + off) * answer.astype(np.float64), answer, answer, "float32")
        assert proof.tolerance == pytest.approx(allowed, rel=0.1)
    with pytest.raises(NotSupported, match="the file itself, beside its answers in float64"):
        compared(1.001 * answer.astype(np.float64), answer, answer, "float32")


def test_bfloat16_is_refused_in_one_line(tmp_path: Path) -> None:
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(export(Encoder().bfloat16()), path)
    result = run(path, "-o", out)
    assert (result.exit_code, list(tmp_path.iterdir())) == (4, [path])
    reason = "weights: expected float32 or float16, found bfloat16, which ONNX Runtime runs on no CPU"
    assert result.output == f"Error: {path}: {reason}; nothing written\n"


def test_weights_that_are_stored_in_bfloat16_are_rewritten(tmp_path: Path) -> None:
    """ONNX Runtime runs on no CPU what computes in bfloat16, but it casts such weights."""
    stored = export(Encoder())
    casts = []
    for weight in (weight for weight in stored.graph.initializer if len(weight.dims) == 2):
        casts.append(onnx.helper.make_node("Cast", [f"{weight.name}_stored"], [weight.name], to=onnx.TensorProto.FLOAT))
        numbers = onnx.numpy_helper.to_array(weight).ravel()
        half = onnx.helper.make_tensor(casts[-1].input[0], onnx.TensorProto.BFLOAT16, weight.dims, numbers)
        weight.CopyFrom(half)
    nodes = [*casts, *stored.graph.node]
    del stored.graph.node[:]
    stored.graph.node.extend(nodes)
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(stored, path)
    manifest_of(path, "-o", out, "--require", "read-rows")
    np.testing.assert_allclose(session(out).run(None, FEEDS)[0], session(path).run(None, FEEDS)[0], atol=1e-5)
