import os
import zipfile
from pathlib import Path

import pytest
import torch
from random_networks import network
from saved_networks import PUBLISHED_SHAPE, TINY, VITBN_NAMES, published, refusal, write, write_pth

from models.checkpoint import load
from models.config import ModelConfig

PUBLISHED = published(network(PUBLISHED_SHAPE), VITBN_NAMES)
WITHOUT_BLOCKS = {name: tensor for name, tensor in PUBLISHED.items() if "layers" not in name}
OTHERS = {
    "no file": (None, "expected a checkpoint, found No such file"),
    "folder": (Path.mkdir, "expected a checkpoint, found Is a directory"),
    **{
        repr(content[:5]): (content, "expected safetensors or a PyTorch state dict, found neither")
        for content in (b"", b"not a checkpoint", b"\x00" * 100, b"\xff" * 100)
    },
    "list": ([torch.zeros(1)], "expected a state dict of only tensors"),
    "more than tensors": ({"epoch": 3, "weights": torch.zeros(1)}, "expected a state dict of only tensors"),
    "tensor": (torch.zeros(1), "expected a state dict of only tensors"),
    "names of no family": ({"layer1.0.weight": torch.zeros(1)}, "expected a"),
    "number as name": ({1: torch.zeros(1)}, "expected a"),
    "nothing": ({}, "expected a"),
    "no block": (WITHOUT_BLOCKS, "expected a published ViT"),
    "complex": (
        PUBLISHED | {"linear_head.bias": PUBLISHED["linear_head.bias"] + 1j},
        "tensor head.bias: expected floating-point numbers, found complex64",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_checkpoint(tmp_path, name):
    (content, said), path = OTHERS[name], tmp_path / "notes.pth"
    if callable(content):
        content(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        write_pth(path, content)
    assert said in refusal(path)


def test_damaged_files(saved, tmp_path):
    saved.write_bytes(saved.read_bytes()[:-1])
    assert "found neither" in refusal(saved)
    with zipfile.ZipFile(tmp_path / "archive.pth", "w") as archive:
        archive.writestr("readme", "text")
    assert "expected a state dict of only tensors" in refusal(tmp_path / "archive.pth")
    path = write_pth(tmp_path / "damaged.pth", PUBLISHED)
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


@pytest.mark.parametrize("name", ["linear_head.weight", "transformer.layers.1.0.norm.BN.running_var", "conv1.weight"])
def test_published_tensor_missing(tmp_path, name):
    cnn = name.startswith("conv")
    state = network(ModelConfig(model="cnn")).state_dict() if cnn else PUBLISHED
    rest = {other: tensor for other, tensor in state.items() if other != name}
    said = refusal(write_pth(tmp_path / "missing.pth", rest))
    assert not cnn or name in said


@pytest.mark.parametrize(
    "name", ["to_patch_embedding.2.weight", "pos_embedding_random", "transformer.layers.0.1.Lin1.weight"]
)
def test_published_tensor_of_no_shape(tmp_path, name):
    refusal(write_pth(tmp_path / "misshaped.pth", PUBLISHED | {name: torch.tensor(1.0)}))
    oblong = PUBLISHED | {"to_patch_embedding.2.weight": torch.zeros(32, 48)}
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read_as_float32(tmp_path, dtype):
    tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in network(TINY).state_dict().items()}
    model = load(write(tmp_path / "half.safetensors", tensors, {"config": TINY.to_json()})).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_name_does_not_command_the_terminal(tmp_path):
    tensors = network(TINY).state_dict() | {"\x1b[2Jgone\n": torch.zeros(1)}
    path = write(tmp_path / "hostile.safetensors", tensors, {"config": TINY.to_json()})
    assert "tensor '\\x1b[2Jgone\\n': expected no such tensor" in refusal(path)
