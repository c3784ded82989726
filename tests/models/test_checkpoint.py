"""Checkpoints: ours round-trip, the study's give its logits, other files are refused."""

import hashlib
import os
import warnings
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from models.checkpoint import CheckpointError, UntrainedBlockWarning, load, read_config, save
from models.config import INPUT_SCALE, ModelConfig
from models.data import load_mnist
from models.metrics import MetricsError
from models.registry import build, randomise_norms

TINY = ModelConfig(image_size=(8, 8), patch_size=(4, 4), dim=16, depth=3, heads=2, dim_head=8, mlp_dim=24)
PUBLISHED_SHAPE = ModelConfig(depth=2, dim=32, heads=2, dim_head=64, mlp_dim=48)  # 64 a head, as all published

# Our names -> the study's; in blocks without the prefix.
VIT_NAMES = {
    "embedding.cls_token": "cls_token",
    "embedding.pos_embedding": "pos_embedding",
    "patch_norm.": "to_patch_embedding.1.",
    "patch_embedding.": "to_patch_embedding.2.",
    "embedding_norm.": "to_patch_embedding.3.",
    "attention.norm.": "0.norm.",
    "attention.qkv.": "0.to_qkv.",
    "attention.out.": "0.to_out.0.",
    "ffn.norm.": "1.net.0.",
    "ffn.linear1.": "1.net.1.",
    "ffn.linear2.": "1.net.4.",
    "norm.": "transformer.norm.",
    "head.": "mlp_head.",
}
VITBNFFN_NAMES = VIT_NAMES | {
    "embedding.pos_embedding": "pos_embedding_random",
    "attention.qkv.": "0.patch_emb.",
    "attention.out.": "0.out_proj.0.",
    "ffn.linear1.": "1.Lin1.",
    "ffn.hidden_norm.norm.": "1.BN.",
    "ffn.linear2.": "1.Lin2.",
    "head.": "linear_head.",
}
VITBN_NAMES = VITBNFFN_NAMES | {
    "patch_norm.norm.": "to_patch_embedding.1.BN.",
    "embedding_norm.norm.": "to_patch_embedding.3.BN.",
    "attention.norm.norm.": "0.norm.BN.",
    "ffn.hidden_norm.norm.": "1.norm.BN.",
    "norm.norm.": "transformer.norm.BN.",
}
NAMES = {"vit": VIT_NAMES, "vitbnffn": VITBNFFN_NAMES, "vitbn": VITBN_NAMES, "cnn": {"": ""}}


def published_name(name, names):
    """The study's name for our tensor `name`."""
    block = ""
    if name.startswith("blocks."):
        _, number, name = name.split(".", 2)
        block = f"transformer.layers.{number}."
    ours = max((prefix for prefix in names if name.startswith(prefix)), key=len)
    return block + names[ours] + name.removeprefix(ours)


def published(model, names):
    """The state dict of `model` under the study's names."""
    return {published_name(name, names): tensor for name, tensor in model.state_dict().items()}


def network(config):
    """A network in eval mode, its weights and norms drawn by seed."""
    torch.manual_seed(0)
    model = build(config).eval()
    randomise_norms(model)
    return model


def image_batch(config):
    return torch.rand(4, *config.input_shape, generator=torch.Generator().manual_seed(1))


def refusal(path, depth=None):
    """The one-line message of a refused file."""
    with pytest.raises(CheckpointError) as refused:
        load(path, depth)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def write(path, tensors, metadata=None):
    """A safetensors file written without `save`."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata)
    return path


def write_pth(path, state):
    torch.save(state, path)
    return path


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of ours, of three blocks."""
    save(tmp_path / "tiny.safetensors", network(TINY), TINY, {"test_accuracy": 0.5})
    return tmp_path / "tiny.safetensors"


@pytest.mark.parametrize("model", ["vit", "vitbnffn", "vitbn", "cnn"])
def test_round_trip_bit_for_bit(tmp_path, model):
    config = ModelConfig(model="cnn") if model == "cnn" else replace(TINY, model=model, pos_emb="pe1d")
    written = network(config)
    path = tmp_path / "folder" / "model.safetensors"
    save(path, written, config, {"epochs": 3})
    read = load(path)
    assert read.config == config
    assert read.metrics == {"epochs": 3}
    assert read.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert not any(module.training for module in read.model.modules())
    torch.testing.assert_close(read.model.state_dict(), written.state_dict(), rtol=0, atol=0)


def test_first_blocks(saved):
    read = load(saved, depth=2)
    assert read.config == replace(TINY, depth=2)
    assert read.metrics == {}, "measured at another depth"
    whole = load(saved)
    del whole.model.blocks[2]
    images = image_batch(TINY)
    torch.testing.assert_close(read.model(images), whole.model(images), rtol=0, atol=0)


def test_all_blocks_keep_the_metrics(saved):
    assert load(saved, depth=3).metrics == {"test_accuracy": 0.5}


def test_what_a_file_is_its_bytes_say(saved, tmp_path):
    renamed = saved.rename(tmp_path / "tiny.pth")
    assert load(renamed).config == TINY


@pytest.mark.parametrize("depth", [1, 6])
@pytest.mark.filterwarnings("ignore::models.checkpoint.UntrainedBlockWarning")
def test_published_checkpoint_gives_its_logits(mnist_dir, reference_dir, depth):
    images = torch.tensor(load_mnist(mnist_dir).test_images[:64]) * INPUT_SCALE
    with np.load(reference_dir / "vitbn_logits.npz") as published_logits:
        expected = published_logits[f"depth{depth}"]
    with torch.inference_mode():
        logits = load(reference_dir / "vitbn.pth", depth).model(images).numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    assert np.abs(logits - np.roll(expected, 1, axis=0)).max() > 1, "the tolerance tells images apart"


def test_untrained_blocks_are_named(reference_dir):
    with pytest.warns(UntrainedBlockWarning) as warned:
        load(reference_dir / "vitbn.pth")
    assert [str(warning.message) for warning in warned] == [
        f"{reference_dir / 'vitbn.pth'}: the BatchNorms of blocks.1, blocks.2, blocks.3, blocks.4, blocks.5 "
        "never saw a batch"
    ]


def test_a_trained_block_is_not(reference_dir):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(reference_dir / "vitbn.pth", depth=1)


def test_names_of_the_published_file(reference_dir):
    state = torch.load(reference_dir / "vitbn.pth", weights_only=True)
    assert published(build(ModelConfig(qkv_bias=True)), VITBN_NAMES).keys() == state.keys()


@pytest.mark.parametrize(
    "config",
    [
        replace(PUBLISHED_SHAPE, model="vit"),
        replace(PUBLISHED_SHAPE, model="vitbnffn"),
        replace(PUBLISHED_SHAPE, model="vitbnffn", qkv_bias=True),
        replace(PUBLISHED_SHAPE, model="vitbnffn", bn_features="one"),
        replace(PUBLISHED_SHAPE, model="vitbn"),
        replace(PUBLISHED_SHAPE, model="vitbn", qkv_bias=True),
        replace(PUBLISHED_SHAPE, model="vitbn", bn_features="one"),
        replace(PUBLISHED_SHAPE, model="vitbn", dim=64, heads=1),
        replace(PUBLISHED_SHAPE, model="vitbn", image_size=(32, 32), patch_size=(8, 8)),
        replace(PUBLISHED_SHAPE, model="vit", num_classes=3, labels=("0", "1", "2")),
        ModelConfig(model="cnn"),
        ModelConfig(model="cnn", channels=3),
    ],
)
def test_published_names(tmp_path, config):
    written = network(config)
    read = load(write_pth(tmp_path / "published.pth", published(written, NAMES[config.model])))
    assert read.config == config
    images = image_batch(config)
    torch.testing.assert_close(read.model(images), written(images), rtol=0, atol=0)


def test_no_such_file(tmp_path):
    assert "expected a checkpoint, found No such file" in refusal(tmp_path / "none.safetensors")


def test_a_folder(tmp_path):
    assert "expected a checkpoint, found Is a directory" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x00" * 100, b"\xff" * 100])
def test_not_a_checkpoint(tmp_path, content):
    path = tmp_path / "notes.safetensors"
    path.write_bytes(content)
    assert "expected safetensors or a PyTorch state dict, found neither" in refusal(path)


def test_truncated(saved):
    saved.write_bytes(saved.read_bytes()[:-1])
    assert "found neither" in refusal(saved)


def test_an_archive_of_something_else(tmp_path):
    with zipfile.ZipFile(tmp_path / "archive.pth", "w") as archive:
        archive.writestr("readme", "text")
    assert "expected a state dict of tensors alone" in refusal(tmp_path / "archive.pth")


def test_a_damaged_name(tmp_path):
    path = write_pth(tmp_path / "damaged.pth", published(network(PUBLISHED_SHAPE), VITBN_NAMES))
    path.write_bytes(path.read_bytes().replace(b"linear_head", b"\xffinear_head"))
    assert "expected a state dict of tensors alone" in refusal(path)


class Harmful:
    """Makes a folder when unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_that_runs_code_does_not(tmp_path):
    path = write_pth(tmp_path / "harmful.pth", {"cls_token": Harmful(tmp_path / "harm")})
    assert "expected a state dict of tensors alone" in refusal(path)
    assert not (tmp_path / "harm").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "harm").exists(), "the pickle is harmful"


@pytest.mark.parametrize("state", [[torch.zeros(1)], {"epoch": 3, "weights": torch.zeros(1)}, torch.zeros(1)])
def test_no_state_dict(tmp_path, state):
    assert "expected a state dict of tensors alone" in refusal(write_pth(tmp_path / "other.pth", state))


@pytest.mark.parametrize("state", [{"layer1.0.weight": torch.zeros(1)}, {1: torch.zeros(1)}, {}])
def test_names_of_no_family(tmp_path, state):
    assert "expected a" in refusal(write_pth(tmp_path / "other.pth", state))


def test_published_names_without_a_block(tmp_path):
    state = published(network(PUBLISHED_SHAPE), VITBN_NAMES)
    path = write_pth(tmp_path / "headless.pth", {k: v for k, v in state.items() if "layers" not in k})
    assert "expected a published ViT" in refusal(path)


def test_published_cnn_without_its_first_weight(tmp_path):
    state = network(ModelConfig(model="cnn")).state_dict()
    del state["conv1.weight"]
    assert "conv1.weight" in refusal(write_pth(tmp_path / "cnn.pth", state))


@pytest.mark.parametrize("name", ["linear_head.weight", "transformer.layers.1.0.norm.BN.running_var"])
def test_published_tensor_missing(tmp_path, name):
    state = published(network(PUBLISHED_SHAPE), VITBN_NAMES)
    del state[name]
    refusal(write_pth(tmp_path / "missing.pth", state))


@pytest.mark.parametrize(
    "name", ["to_patch_embedding.2.weight", "pos_embedding_random", "transformer.layers.0.1.Lin1.weight"]
)
def test_published_tensor_of_no_shape(tmp_path, name):
    state = published(network(PUBLISHED_SHAPE), VITBN_NAMES) | {name: torch.tensor(1.0)}
    refusal(write_pth(tmp_path / "misshaped.pth", state))


def test_published_patches_that_are_not_square(tmp_path):
    state = published(network(PUBLISHED_SHAPE), VITBN_NAMES)
    state["to_patch_embedding.2.weight"] = torch.zeros(32, 48)
    assert "16 patches of 48" in refusal(write_pth(tmp_path / "oblong.pth", state))


def test_missing_tensor(tmp_path):
    tensors = network(TINY).state_dict()
    del tensors["head.bias"]
    path = write(tmp_path / "missing.safetensors", tensors, {"config": TINY.to_json()})
    assert refusal(path).endswith("tensor head.bias: expected (10,), found none")


def test_surplus_tensor(tmp_path):
    tensors = network(TINY).state_dict() | {"tail.bias": torch.zeros(2)}
    path = write(tmp_path / "surplus.safetensors", tensors, {"config": TINY.to_json()})
    assert refusal(path).endswith("tensor tail.bias: expected no such tensor, found (2,)")


def test_misshaped_tensor(tmp_path):
    tensors = network(TINY).state_dict() | {"head.bias": torch.zeros(9)}
    path = write(tmp_path / "misshaped.safetensors", tensors, {"config": TINY.to_json()})
    assert refusal(path).endswith("tensor head.bias: expected (10,), found (9,)")


@pytest.mark.parametrize("metadata", [None, {"metrics": "{}"}, {"config": "{"}, {"config": '{"depth": 0}'}])
def test_config_missing_or_none(tmp_path, metadata):
    path = write(tmp_path / "anonymous.safetensors", network(TINY).state_dict(), metadata)
    assert "expected a model config in the metadata" in refusal(path)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_numbers_of_another_kind(tmp_path, dtype):
    tensors = network(TINY).state_dict()
    tensors["head.bias"] = tensors["head.bias"].to(dtype)
    path = write(tmp_path / "other.safetensors", tensors, {"config": TINY.to_json()})
    assert "tensor head.bias: expected floating-point numbers, found " in refusal(path)


def test_published_weights_are_not_complex(tmp_path):
    state = published(network(PUBLISHED_SHAPE), VITBN_NAMES)
    state["linear_head.bias"] = state["linear_head.bias"] + 1j
    path = write_pth(tmp_path / "complex.pth", state)
    assert refusal(path).endswith("tensor head.bias: expected floating-point numbers, found complex64")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read_as_float32(tmp_path, dtype):
    tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in network(TINY).state_dict().items()}
    model = load(write(tmp_path / "half.safetensors", tensors, {"config": TINY.to_json()})).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_name_does_not_command_the_terminal(tmp_path):
    tensors = network(TINY).state_dict() | {"\x1b[2Jgone\n": torch.zeros(1)}
    path = write(tmp_path / "hostile.safetensors", tensors, {"config": TINY.to_json()})
    assert "tensor '\\x1b[2Jgone\\n': expected no such tensor" in refusal(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("?", "a JSON object, found Expecting value"),
        ("[]", "a JSON object, found list"),
        ('{"test_accuracy": NaN}', "a JSON object, found the constant NaN"),
        ('{"test_accuracy": "high"}', "test_accuracy to be a number from 0 to 1, found 'high'"),
        ('{"test_accuracy": [1]}', "test_accuracy to be a number from 0 to 1, found '[1]'"),
        ('{"test_accuracy": 99.5}', "test_accuracy to be a number from 0 to 1, found '99.5'"),
        ('{"held_out_accuracy": true}', "held_out_accuracy to be a number from 0 to 1, found 'True'"),
        ('{"temperature": 0}', "temperature to be a number above 0, up to 1000, found '0'"),
        ('{"temperature": 1e999}', "temperature to be a number above 0, up to 1000, found 'inf'"),
        ('{"epochs": 1.5}', "epochs to be an integer of at least 1, found '1.5'"),
        ('{"dataset": "a\\nb"}', "dataset to be a printable name, found 'a\\nb'"),
        ('{"options": 7}', "options to be an object, found '7'"),
    ],
)
def test_metrics_of_another_form(tmp_path, text, found):
    path = write(tmp_path / "odd.safetensors", network(TINY).state_dict(), {"config": TINY.to_json(), "metrics": text})
    assert f"{path}: metrics: expected {found}" in refusal(path)


@pytest.mark.parametrize(
    "metrics",
    [{"test_accuracy": float("nan")}, {"test_accuracy": "high"}, {"x": float("inf")}, {"x": {1, 2}}, {"epochs": 0}],
)
def test_metrics_are_checked_where_they_are_written(tmp_path, metrics):
    with pytest.raises(MetricsError, match=r"^metrics: expected "):
        save(tmp_path / "x.safetensors", network(TINY), TINY, metrics)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("depth", [0, -1, 4])
def test_depth_that_is_not_there(saved, depth):
    assert refusal(saved, depth).endswith(f"expected at least {depth} blocks (--depth {depth}), found 3 blocks")


def test_depth_of_a_cnn(tmp_path):
    config = ModelConfig(model="cnn")
    save(tmp_path / "cnn.safetensors", network(config), config, {})
    assert refusal(tmp_path / "cnn.safetensors", 1).endswith("found no transformer")


def test_a_failed_save_leaves_what_was_there(saved, monkeypatch):
    before = saved.read_bytes()

    def full(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        save(saved, network(replace(TINY, depth=1)), replace(TINY, depth=1), {})
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_config_alone(saved):
    assert read_config(saved) == TINY


@pytest.mark.parametrize("content", [None, b"", b"no checkpoint"], ids=["no file", "empty", "text"])
def test_config_of_no_checkpoint(tmp_path, content):
    path = tmp_path / "x.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x\.safetensors: expected safetensors"):
        read_config(path)
