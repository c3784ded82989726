"""Another's network behind bytes: folded or not, its answers are the original's to the processor's floats."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from picture_networks import CLASSES, SIDE, answers, network

from export.compiler.errors import NotSupported, ProofFailed
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators.costs import graph_work
from export.compiler.pipeline import Prepared, Rewritten
from export.errors import ExportError, PublishError
from export.pictures.picture_artifact import MadeArtifact, make_picture_artifact
from export.pictures.processor import Processor, from_options
from export.pictures.uint8_input import Interface
from export.publishing.picture_config import PictureConfig
from models.networks.config import INPUT_NAME, OUTPUT_NAME

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMAL = from_options(MEAN, STD, 1, "bicubic", (SIDE, SIDE))
GREY = from_options(MEAN[:1], STD[:1], 1, "bicubic", (SIDE, SIDE))
FLIPPED = Processor(MEAN, STD, from_options(MEAN, STD, 1, "box", (SIDE, SIDE)).framing, (SIDE, SIDE), bgr=True)
LAST = (0, 2, 3, 1)  # axes of pictures whose channels are the last
# Zeros of a padded convolution are zeros of normalised levels: folded, the border would be wrong.
TAKE_NO_SHIFT = [("padding", 1), ("first", "LayerNormalization"), ("first", "Relu")]


def usual(found: Interface) -> Processor:
    sizes = found.size or (SIDE, SIDE)
    return from_options(MEAN[: found.channels], STD[: found.channels], 0.9, "bicubic", sizes)


def made(path: Path, processor: Any = usual, labels: list[str] | None = None, **variation: Any) -> MadeArtifact:
    return make_picture_artifact(network(path / "net.onnx", **variation), processor, labels)


def check(
    path: Path,
    found: MadeArtifact,
    processor: Processor = NORMAL,
    output: str = "scores",
    dtype: Any = np.float32,
    order: tuple[int, ...] = (0, 1, 2, 3),
) -> None:
    """Beside the original on floats of the processor, their axes in `order`, at a batch that the proof does not use."""
    images = np.random.default_rng(7).integers(0, 256, (6, *shape_of(found)), np.uint8)
    floats = processor.apply(images, np.float32).astype(dtype)
    expected = answers(path / "net.onnx", output, pixels=floats.transpose(order)).astype(np.float64)
    got = answers(found.artifact.data, OUTPUT_NAME, **{INPUT_NAME: images})
    assert got.dtype == np.float32
    tolerance = 1e-5 if dtype == np.float32 else 5e-3
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()


def shape_of(found: MadeArtifact) -> tuple[int, int, int]:
    config = found.artifact.network.config
    assert isinstance(config, PictureConfig)
    return config.input_shape


@pytest.mark.parametrize(
    ("variation", "order", "left"),
    [
        ({}, (0, 1, 2, 3), ()),
        ({"channels_last": True}, LAST, ()),  # as tf2onnx writes a network of Keras
        *(({name: value}, (0, 1, 2, 3), ("Mul", "Add")) for name, value in TAKE_NO_SHIFT),
    ],
)
def test_the_processor_folds_into_a_patch_embedding_that_takes_its_shift(
    variation: dict[str, Any], order: tuple[int, ...], left: tuple[str, ...], tmp_path: Path
) -> None:
    found = made(tmp_path, **variation)
    assert (found.normalising, found.not_rewritten) == (left, "")
    assert [proof.precision for proof in found.proofs] == ["float64", "float32"]
    assert found.proofs[0].error < 1e-13
    operators = [node.op_type for node in onnx.load_from_string(found.artifact.data).graph.node]
    assert (operators[:2] == ["Cast", "Conv"]) is not bool(left)
    check(tmp_path, found, order=order)


def test_a_reader_of_the_batch_hides_no_normalisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporters read the size of the batch from the pictures."""
    model = onnx.load(network(tmp_path / "net.onnx", padding=1, first="Relu"))
    model.graph.node[0].op_type = "Identity"
    model.graph.node[-1].output[0] = "head_out"
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [1], [0])
    sizes = helper.make_node("Shape", ["pixels"], ["batch_size"], start=0, end=1)
    fill = helper.make_node("ConstantOfShape", ["batch_size"], ["zeros"], value=zero)
    column = helper.make_node("Unsqueeze", ["zeros", "one"], ["column"])
    model.graph.initializer.append(helper.make_tensor("one", TensorProto.INT64, [1], [1]))
    model.graph.node.extend([sizes, fill, column, helper.make_node("Add", ["head_out", "column"], ["scores"])])
    onnx.save(model, tmp_path / "net.onnx")
    monkeypatch.setattr("export.pictures.picture_artifact.optimise", prepared_alone)
    assert make_picture_artifact(tmp_path / "net.onnx", usual, None).normalising == ("Mul", "Add")


def prepared_alone(ready: Prepared, sizes: Any) -> Rewritten:
    """As a pass may leave it: the shape is read of the bytes."""
    model = ready.model.clone()
    (shape,) = [node for node in model.graph if node.op_type == "Shape"]
    shape.replace_input_with(0, model.graph.inputs[0])
    return Rewritten(model, graph_work(Shapes(model.graph, sizes)), ())


def spoil(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Of the shift alone, which the reference of the proof does not read."""
    wrong = property(lambda self: -factor * np.reshape(self.mean, (1, -1, 1, 1)) / np.reshape(self.std, (1, -1, 1, 1)))
    monkeypatch.setattr(Processor, "shift", wrong)


def test_a_wrong_fold_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, 1.01)
    with pytest.raises(ProofFailed, match="float32: output 0") as failed:
        made(tmp_path)
    assert "--" not in str(failed.value), "an option of vitbn rewrite"


def test_a_small_fault_shows_in_double_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, 1 + 1e-7)
    assert made(tmp_path).not_rewritten.startswith("float64: output 0: expected an error of at most 1e-10")


ANSWERED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of the network, and of the comparison
    "grey": ({"channels": 1}, {"processor": GREY}),
    "sizes that Paddle leaves free": ({"batch": -1, "sides": (-1, -1)}, {}),
    "sides that get the processor's size": ({"sides": ("h", "w")}, {}),
    "float16 that stays": ({"dtype": TensorProto.FLOAT16}, {"dtype": np.float16}),
    "several outputs": ({"outputs": ("logits", "features")}, {"output": "logits"}),
    "channels that the processor flips": ({"processor": lambda found: FLIPPED}, {"processor": FLIPPED}),
}


@pytest.mark.parametrize(("variation", "compared"), ANSWERED.values(), ids=ANSWERED)
def test_a_network_answers_as_its_original(variation: dict[str, Any], compared: dict[str, Any], tmp_path: Path) -> None:
    found = made(tmp_path, **variation)
    check(tmp_path, found, **compared)
    assert shape_of(found) == (variation.get("channels", 3), SIDE, SIDE)
    assert found.artifact.origin.precision == ("fp16" if "dtype" in variation else "fp32")


@pytest.mark.parametrize("last", [False, True])
def test_a_network_of_bytes_is_taken_as_it_is(last: bool, tmp_path: Path) -> None:
    found = made(tmp_path, channels_last=last, dtype=TensorProto.UINT8)
    images = np.random.default_rng(7).integers(0, 256, (4, 3, SIDE, SIDE), np.uint8)
    expected = answers(tmp_path / "net.onnx", "scores", pixels=images.transpose(LAST) if last else images)
    np.testing.assert_allclose(answers(found.artifact.data, OUTPUT_NAME, image=images), expected, rtol=1e-4)


def test_rows_taken_for_columns_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.pictures.uint8_input.FIRST_TO_LAST", (0, 3, 2, 1))
    with pytest.raises(ProofFailed, match="float32: output 0"):
        made(tmp_path, channels_last=True)


def test_a_softmax_at_the_end_is_left_to_the_clients(tmp_path: Path) -> None:
    found = made(tmp_path, end="Softmax")
    images = np.random.default_rng(7).integers(0, 256, (4, 3, SIDE, SIDE), np.uint8)
    scores = answers(found.artifact.data, OUTPUT_NAME, image=images).astype(np.float64)
    floats = NORMAL.apply(images, np.float32)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    expected = answers(tmp_path / "net.onnx", "scores", pixels=floats)
    np.testing.assert_allclose(powers / powers.sum(1, keepdims=True), expected, atol=1e-6)


def test_what_the_passes_do_not_read_stays_as_it_is(tmp_path: Path) -> None:
    """A graph within the graph."""
    model = onnx.load(network(tmp_path / "net.onnx"))
    body = helper.make_graph(
        [helper.make_node("Identity", ["mean"], ["same"])],
        "body",
        [],
        [helper.make_tensor_value_info("same", TensorProto.FLOAT, None)],
    )
    size = helper.make_node("Size", ["mean"], ["size"])
    any_ = helper.make_node("Cast", ["size"], ["any"], to=TensorProto.BOOL)
    choice = helper.make_node("If", ["any"], ["chosen"], then_branch=body, else_branch=body)
    for node in (size, any_, choice):
        model.graph.node.insert(len(model.graph.node) - 1, node)
    model.graph.node[-1].input[0] = "chosen"
    onnx.save(model, tmp_path / "net.onnx")
    found = make_picture_artifact(tmp_path / "net.onnx", usual, None)
    assert "expected no graph within the graph, found If" in found.not_rewritten
    assert found.rewritten is None
    assert found.normalising == ("Mul", "Add")
    check(tmp_path, found)


def test_what_clients_read_travels_in_the_file(tmp_path: Path) -> None:
    held = {each.key: each.value for each in onnx.load_from_string(made(tmp_path).artifact.data).metadata_props}
    config = json.loads(held["model_config"])
    assert config["labels"] == [f"class {number}" for number in range(CLASSES)]
    assert config["framing"] == {
        **{"fit": "short side", "size": [17, 17], "resample": "bicubic", "like": "timm", "fill": []}
    }


def test_names_that_two_classes_share_get_their_number(tmp_path: Path) -> None:
    config = made(tmp_path, labels=["crane", "bag", "crane", "coat", "dress"]).artifact.network.config
    assert config.labels == ("crane (0)", "bag", "crane (2)", "coat", "dress")


@pytest.mark.parametrize(
    ("variation", "found"),
    [
        ({"batch": 2}, "input pixels: expected a free batch, found 2; torch.onnx.export has dynamic_shapes"),
        (
            {"channels": 4},
            "input pixels: expected float or uint8 pictures (batch, 1 or 3 channels, height, width), found",
        ),
        ({"dtype": TensorProto.DOUBLE}, "found DOUBLE"),
        ({"end": "Sigmoid"}, "output scores: expected scores of classes that exclude each other, found Sigmoid"),
        ({"outputs": ("a", "b")}, "expected one output, the scores of classes, found a, b; vitbn rewrite --read NAME"),
        ({"outputs": ("image_embeds",)}, "output image_embeds: expected scores of classes, found others"),
        ({"classes": 1}, "expected scores of two classes or more (batch, classes), found (1, 1)"),
        ({"labels": ["a", "b"]}, "net.onnx has 5 classes, found 2"),
        ({"labels": ["a", "b\t", "c", "d", "e"]}, "expected printable names that are not empty, found 'b\\t'"),
        ({"labels": ["a", "a", "a (1)", "b", "c"]}, "expected a different name for each class, found 'a (1)'"),
        (
            {"processor": lambda found: from_options(MEAN, STD, 1, "box", (32, 32))},
            "expected a processor for the network's 16x16 pixels, found 32x32",
        ),
        ({"processor": lambda found: NORMAL, "channels": 1}, "expected numbers for 1 channels, found 3"),
    ],
)
def test_another_network_or_labels_or_a_processor_of_another_are_refused_in_a_line(
    variation: dict[str, Any], found: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError) as refusal:
        made(tmp_path, **variation)
    assert found in str(refusal.value)
    assert str(refusal.value).startswith("--labels: " if "labels" in variation else f"{tmp_path / 'net.onnx'}: ")
    assert "\n" not in str(refusal.value)


def test_a_network_whose_answers_depend_on_the_batch_is_refused(tmp_path: Path) -> None:
    model = onnx.load(network(tmp_path / "net.onnx"))
    head = model.graph.node[-1]
    head.output[0] = "head_out"
    mean = helper.make_node("ReduceMean", ["head_out", "first"], ["mean_of_all"], keepdims=1)
    model.graph.initializer.append(helper.make_tensor("first", TensorProto.INT64, [1], [0]))
    model.graph.node.extend([mean, helper.make_node("Sub", ["head_out", "mean_of_all"], ["scores"])])
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(PublishError, match="do not depend on the other pictures of a batch"):
        make_picture_artifact(tmp_path / "net.onnx", usual, None)


@pytest.mark.parametrize("rewritten", [True, False])
def test_weights_beside_the_file_travel_in_it(rewritten: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(
        onnx.load(network(tmp_path / "net.onnx")),
        tmp_path / "net.onnx",
        save_as_external_data=True,
        location="w",
        size_threshold=64,
    )
    if not rewritten:
        monkeypatch.setattr("export.pictures.picture_artifact.optimise", refuse)
    found = make_picture_artifact(tmp_path / "net.onnx", usual, None)
    assert bool(found.not_rewritten) != rewritten
    (tmp_path / "w").rename(tmp_path / "elsewhere")
    images = np.zeros((1, 3, SIDE, SIDE), np.uint8)
    assert answers(found.artifact.data, OUTPUT_NAME, image=images).shape == (1, CLASSES)


def refuse(*given: object, **named: object) -> None:
    raise NotSupported("expected another graph")


def test_a_file_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ours.onnx").write_bytes(made(tmp_path).artifact.data)
    with pytest.raises(PublishError, match="expected a network of another origin, found ours: publish it without"):
        make_picture_artifact(tmp_path / "ours.onnx", usual, None)
