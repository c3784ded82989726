"""An input with a default stays an input, or the rewrite says that it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from foreign_networks import manifest_of, parse, wrote
from numpy.typing import NDArray

from common.sample import Sample
from export.compiler.pipeline import rewrite

WEIGHT = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


@pytest.fixture(params=["float[1]", "float"])
def tempered(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The temperature is a vector, then a scalar."""
    network = parse(
        f"""<ir_version: 9, opset_import: ["": 17]> g (float[b, n, 4] x, {request.param} temperature)
            => (float[b, n, 4] y) {{ h = MatMul(x, w) y = Div(h, temperature) }}""",
        w=WEIGHT,
        temperature=np.full([1] if "[" in request.param else [], 2.0, np.float32),
    )
    ir.save(network, path := tmp_path / "tempered.onnx")
    return path


def half(file: Path) -> NDArray[np.float32]:
    """Another temperature, of the file's shape."""
    (tensor,) = [each for each in onnx.load(file).graph.initializer if each.name == "temperature"]
    return np.full(tensor.dims, 0.5, np.float32)


def test_an_input_with_a_default_stays_one(tempered: Path, tmp_path: Path) -> None:
    assert manifest_of(tempered, "-o", tmp_path / "out.onnx", "--read", "y[:,0]")["fixed_inputs"] == []
    assert [*Sample.read(tmp_path / "out.npz").inputs] == ["x"]
    before, after = ort.InferenceSession(tempered), ort.InferenceSession(tmp_path / "out.onnx")
    x = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32)
    for more in {}, {"temperature": half(tempered)}:
        feeds = {"x": x, **more}
        np.testing.assert_allclose(after.run(None, feeds)[0], before.run(None, feeds)[0][:, 0], rtol=1e-5)


def test_given_inputs_need_not_name_it(tempered: Path, tmp_path: Path) -> None:
    np.savez(given := tmp_path / "given.npz", x=np.ones((2, 3, 4), np.float32))
    wrote(tempered, "-o", tmp_path / "out.onnx", "--read", "y[:,0]", "--inputs", given)
    np.savez(given, x=np.ones((2, 3, 4), np.float32), temperature=half(tempered))
    wrote(tempered, "-o", tmp_path / "out.onnx", "--read", "y[:,0]", "--inputs", given)
    sample = Sample.read(tmp_path / "out.npz")
    answers = ort.InferenceSession(tmp_path / "out.onnx").run(None, sample.inputs)
    np.testing.assert_allclose(sample.outputs["y"].astype(np.float64), answers[0], rtol=1e-5)


def test_a_program_gets_a_model_with_the_input(tempered: Path) -> None:
    model = rewrite(ir.load(tempered), ["y[:,0]"]).model
    assert model.graph.initializers["temperature"] is model.graph.inputs[1]


def test_a_file_that_lists_all_its_weights_says_so(tempered: Path, tmp_path: Path) -> None:
    """As PyTorch's older exporter with keep_initializers_as_inputs: no pass would find a constant."""
    proto = onnx.load(tempered)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [4, 4]))
    onnx.save(proto, tempered)
    result = wrote(tempered, "-o", tmp_path / "out.onnx", "--read", "y[:,0]")
    assert "now constant" in result.output
    assert "inputs with a default, as all weights are: temperature, w" in result.output
    assert [value.name for value in ort.InferenceSession(tmp_path / "out.onnx").get_overridable_initializers()] == []
