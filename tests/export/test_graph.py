import json
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from export import graph
from export.equivalence import (
    AxesDiffer,
    DtypesDiffer,
    NamesDiffer,
    ShapesDiffer,
    ValuesDiffer,
    onnx_classifier,
    proof_images,
)
from export.graph import Exported, Served, check_interface, export
from export.rewrites.pipeline import FUSE, Step
from models.checkpoint import Checkpoint, load
from models.config import INPUT_NAME, OUTPUT_NAME, ModelConfig
from models.registry import build, randomise_norms


def checkpoint(config: ModelConfig) -> Checkpoint:
    torch.manual_seed(0)
    model = build(config).eval()
    randomise_norms(model)
    return Checkpoint(Path("random.safetensors"), model, config, "0" * 64)


@cache
def folded(config: ModelConfig) -> Exported:
    return export(checkpoint(config), FUSE)


def node_types(exported: Exported) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load_from_string(exported.onnx).graph.node)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["vit", "vitbnffn", "vitbn", "vit-dfn", "cnn", "dnn", "dnnbn"])
def test_folded_graphs_hold_no_batchnorm(model: str) -> None:
    config = ModelConfig(model=model, depth=1)
    counts = node_types(folded(config))
    assert counts["BatchNormalization"] == 0
    assert counts["Cast"] == 1
    assert counts["LayerNormalization"] == {"vit": 5, "vitbnffn": 4}.get(model, 0)


@pytest.mark.slow
def test_no_folder_of_this_machine_is_in_the_file() -> None:
    assert str(Path(graph.__file__).parent).encode() not in folded(ModelConfig(depth=1)).onnx


@pytest.mark.slow
def test_a_plain_graph_holds_them_all() -> None:
    assert node_types(export(checkpoint(ModelConfig(depth=1)), ()))["BatchNormalization"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 20, 21])
def test_opsets(opset: int) -> None:
    exported = export(checkpoint(ModelConfig(depth=1)), FUSE, opset=opset)
    assert onnx.load_from_string(exported.onnx).opset_import[0].version == opset


@pytest.mark.slow
def test_the_batch_is_dynamic_and_every_image_is_answered_alone() -> None:
    config = ModelConfig(depth=1)
    classify = onnx_classifier(folded(config).onnx)
    images = proof_images(config)
    together = classify(images[:13])
    alone = np.concatenate([classify(images[i : i + 1]) for i in range(13)])
    assert np.abs(together - alone).max() < 1e-5


@pytest.mark.slow
def test_other_images_than_digits() -> None:
    config = ModelConfig(
        depth=1, channels=3, image_size=(16, 24), patch_size=(8, 8), num_classes=3, labels=("a", "b", "c")
    )
    exported = export(checkpoint(config), FUSE)
    assert onnx_classifier(exported.onnx)(proof_images(config)).shape == (64, 3)


@pytest.mark.slow
def test_the_metadata_tells_the_story() -> None:
    exported = folded(ModelConfig(depth=1))
    metadata = {entry.key: entry.value for entry in onnx.load_from_string(exported.onnx).metadata_props}
    assert ModelConfig.from_json(metadata["model_config"]) == ModelConfig(depth=1)
    assert json.loads(metadata["rewrites"]) == ["fold_batchnorm", "carry_biases", "fold_input_scale"]
    assert 0 < float(metadata["max_abs_error"]) < float(metadata["tolerance"]) == 1e-4
    assert metadata["checkpoint_sha256"] == "0" * 64
    assert exported.artifact.about["max_abs_error"] == float(metadata["max_abs_error"])


@pytest.mark.slow
def test_the_published_checkpoint_folds(reference_dir: Path) -> None:
    exported = export(load(reference_dir / "vitbn.pth", depth=1), FUSE)
    assert node_types(exported)["BatchNormalization"] == 0


def test_a_wrong_rewrite_is_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    real = graph.apply

    def forgets_a_bias(*arguments: object) -> tuple[torch.nn.Module, list[Step]]:
        folded, steps = real(*arguments)
        folded.get_parameter("blocks.0.ffn.linear1.bias").data[0] = 0
        return folded, steps

    monkeypatch.setattr(graph, "apply", forgets_a_bias)
    with pytest.raises(ValuesDiffer, match="rewritten, float64"):
        export(checkpoint(ModelConfig(depth=1)), FUSE)


@pytest.mark.slow
def test_a_wrong_graph_is_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    real = graph.to_onnx
    monkeypatch.setattr(graph, "to_onnx", lambda model, config, opset: real(Served(model.model, False), config, opset))
    with pytest.raises(ValuesDiffer, match="ONNX, float32"):  # 1/255 applied twice
        export(checkpoint(ModelConfig(depth=1)), FUSE)


def interface(input_name: str, dtype: int, input_shape: list[object], output_shape: list[object]) -> onnx.ModelProto:
    image = helper.make_tensor_value_info(input_name, dtype, input_shape)
    logits = helper.make_tensor_value_info(OUTPUT_NAME, TensorProto.FLOAT, output_shape)
    return helper.make_model(helper.make_graph([], "g", [image], [logits]))


@pytest.mark.parametrize(
    ("proto", "error"),
    [
        (interface("x", TensorProto.UINT8, ["b", 1, 28, 28], ["b", 10]), NamesDiffer),
        (interface(INPUT_NAME, TensorProto.UINT8, [2, 1, 28, 28], ["b", 10]), AxesDiffer),
        (interface(INPUT_NAME, TensorProto.UINT8, ["b", 1, 28, 28], [2, 10]), AxesDiffer),
        (interface(INPUT_NAME, TensorProto.UINT8, ["b", 3, 28, 28], ["b", 10]), ShapesDiffer),
        (interface(INPUT_NAME, TensorProto.FLOAT, ["b", 1, 28, 28], ["b", 10]), DtypesDiffer),
    ],
    ids=["name", "input axis", "output axis", "shape", "dtype"],
)
def test_a_wrong_interface_is_named(proto: onnx.ModelProto, error: type[Exception]) -> None:
    with pytest.raises(error, match="ONNX"):
        check_interface(proto, ModelConfig())


@pytest.mark.slow
def test_the_right_interface_passes() -> None:
    config = ModelConfig(depth=1)
    check_interface(onnx.load_from_string(folded(config).onnx), config)
