import os
import zipfile

import pytest
import torch
from random_networks import network
from saved_networks import (
    PUBLISHED_SHAPE,
    TINY,
    VITBN_NAMES,
    published,
    refusal,
    write,
    write_pth,
)

from models.checkpoint import load
from models.config import ModelConfig


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
    assert "expected a state dict of only tensors" in refusal(tmp_path / "archive.pth")


def test_a_damaged_name(tmp_path):
    path = write_pth(tmp_path / "damaged.pth", published(network(PUBLISHED_SHAPE), VITBN_NAMES))
    path.write_bytes(path.read_bytes().replace(b"linear_head", b"\xffinear_head"))
    assert "expected a state dict of only tensors" in refusal(path)


class Harmful:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_that_runs_code_does_not(tmp_path):
    path = write_pth(tmp_path / "harmful.pth", {"cls_token": Harmful(tmp_path / "harm")})
    assert "expected a state dict of only tensors" in refusal(path)
    assert not (tmp_path / "harm").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "harm").exists(), "the pickle is harmful"


@pytest.mark.parametrize("state", [[torch.zeros(1)], {"epoch": 3, "weights": torch.zeros(1)}, torch.zeros(1)])
def test_no_state_dict(tmp_path, state):
    assert "expected a state dict of only tensors" in refusal(write_pth(tmp_path / "other.pth", state))


@pytest.mark.parametrize("state", [{"layer1.0.weight": torch.zeros(1)}, {1: torch.zeros(1)}, {}])
def test_names_of_no_family(tmp_path, state):
    assert "expected a" in refusal(write_pth(tmp_path / "other.pth", state))


def test_published_names_without_a_block(tmp_path):
    state = published(network(PUBLISHED_SHAPE), VITBN_NAMES)
    path = write_pth(tmp_path / "headless.pth", {k: v for k, v in state.items() if "layers" not in k})
    assert "expected a published ViT" in refusal(path)


@pytest.mark.parametrize("name", ["linear_head.weight", "transformer.layers.1.0.norm.BN.running_var", "conv1.weight"])
def test_published_tensor_missing(tmp_path, name):
    cnn = name.startswith("conv")
    state = network(ModelConfig(model="cnn")).state_dict() if cnn else published(network(PUBLISHED_SHAPE), VITBN_NAMES)
    del state[name]
    said = refusal(write_pth(tmp_path / "missing.pth", state))
    assert not cnn or name in said


@pytest.mark.parametrize(
    "name", ["to_patch_embedding.2.weight", "pos_embedding_random", "transformer.layers.0.1.Lin1.weight"]
)
def test_published_tensor_of_no_shape(tmp_path, name):
    state = published(network(PUBLISHED_SHAPE), VITBN_NAMES)
    refusal(write_pth(tmp_path / "misshaped.pth", state | {name: torch.tensor(1.0)}))
    oblong = state | {"to_patch_embedding.2.weight": torch.zeros(32, 48)}
    assert "16 patches of 48" in refusal(write_pth(tmp_path / "oblong.pth", oblong))


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("head.bias", None, "expected (10,), found none"),
        ("head.bias", torch.zeros(9), "expected (10,), found (9,)"),
        ("tail.bias", torch.zeros(2), "expected no such tensor, found (2,)"),
    ],
    ids=["missing", "misshaped", "surplus"],
)
def test_tensors_that_do_not_fit(tmp_path, name, tensor, said):
    tensors = network(TINY).state_dict() | {name: tensor}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    path = write(tmp_path / "x.safetensors", kept, {"config": TINY.to_json()})
    assert refusal(path).endswith(f"tensor {name}: {said}")


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (None, "expected a model config in the metadata, found none"),
        ({"metrics": "{}"}, "expected a model config in the metadata, found none"),
        ({"config": "{"}, "model config: expected a JSON object of ModelConfig fields, found Expecting property name"),
        ({"config": '{"depth": 0}'}, "depth: expected an integer of at least 1"),
    ],
)
def test_config_missing_or_none(tmp_path, metadata, said):
    path = write(tmp_path / "anonymous.safetensors", network(TINY).state_dict(), metadata)
    assert refusal(path).startswith(f"{path}: {said}")


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
