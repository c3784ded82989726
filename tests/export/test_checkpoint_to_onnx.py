import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from networks import SHALLOW, VARIANT, checkpoint
from onnx import TensorProto, helper

from export import checkpoint_to_onnx
from export.checkpoint_to_onnx import Form, check_interface, export
from export.compare_logits import EquivalenceError
from export.compiler.proof.runner import Runner, answers_apart
from models.networks.config import INPUT_NAME, OUTPUT_NAME, ModelConfig


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 21])
def test_the_file_has_the_opset_that_was_asked_for(opset: int) -> None:
    exported = export(checkpoint(VARIANT), Form(opset=opset))
    assert onnx.load_from_string(exported.onnx).opset_import[0].version == opset


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(depth=1),
        ModelConfig(depth=2),
        ModelConfig(depth=2, dim=32, dim_head=16, class_attention=(32, 16)),
        replace(SHALLOW, model="vit-dfn"),
    ],
    ids=["one block", "two", "late", "vit-dfn"],
)
def test_an_empty_batch_gets_an_empty_answer(config: ModelConfig, tmp_path: Path) -> None:
    """It must not end the server's process."""
    (path := tmp_path / "model.onnx").write_bytes(export(checkpoint(config), Form("all")).onnx)
    answers = answers_apart(Runner(path), {"image": np.zeros((0, 1, 28, 28), np.uint8)})
    assert answers["logits"].shape == (0, 10)


@pytest.mark.slow
def test_the_metadata_repeats_the_origin_in_the_manifest() -> None:
    exported = export(checkpoint(ModelConfig(depth=1)))
    assert str(Path(checkpoint_to_onnx.__file__).parent).encode() not in exported.onnx, "no folder of this machine"
    proto = onnx.load_from_string(exported.onnx)
    assert proto.opset_import[0].version == 20
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    assert ModelConfig.from_json(metadata["model_config"]) == ModelConfig(depth=1)
    assert tuple(json.loads(metadata["rewrites"])) == Form("bn").passes
    assert 0 < float(metadata["max_abs_error"]) < float(metadata["tolerance"]) == exported.comparisons[-1].tolerance
    assert metadata["checkpoint_sha256"] == "0" * 64
    assert exported.artifact.network.max_abs_error == float(metadata["max_abs_error"])


def interface(input_name: str, dtype: int, input_shape: list[object], output_shape: list[object]) -> onnx.ModelProto:
    image = helper.make_tensor_value_info(input_name, dtype, input_shape)
    logits = helper.make_tensor_value_info(OUTPUT_NAME, TensorProto.FLOAT, output_shape)
    return helper.make_model(helper.make_graph([], "g", [image], [logits]))


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (interface("x", TensorProto.UINT8, ["b", 1, 28, 28], ["b", 10]), "ONNX: expected one tensor image, found .*x"),
        (interface(INPUT_NAME, TensorProto.UINT8, [2, 1, 28, 28], ["b", 10]), "image: expected a dynamic batch"),
        (interface(INPUT_NAME, TensorProto.UINT8, ["b", 1, 28, 28], [2, 10]), "logits: expected a dynamic batch"),
        (interface(INPUT_NAME, TensorProto.UINT8, ["b", 3, 28, 28], ["b", 10]), r"image: expected \(1, 28, 28\) after"),
        (interface(INPUT_NAME, TensorProto.FLOAT, ["b", 1, 28, 28], ["b", 10]), "image: expected UINT8, found FLOAT"),
    ],
    ids=["name", "input axis", "output axis", "shape", "dtype"],
)
def test_a_wrong_interface_is_named(proto: onnx.ModelProto, message: str) -> None:
    with pytest.raises(EquivalenceError, match=message):
        check_interface(proto, ModelConfig())
