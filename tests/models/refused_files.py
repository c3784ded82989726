"""Files that are no checkpoints: each with its writer and what the refusal says of it."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from random_networks import network
from saved_networks import PUBLISHED_SHAPE, TINY, VITBN_NAMES, published, write, write_pth

from models.networks.config import ModelConfig

PUBLISHED = published(network(PUBLISHED_SHAPE), VITBN_NAMES)
OTHER = {name: tensor + 1 for name, tensor in PUBLISHED.items()}
SMALL = network(TINY).state_dict()
CNN = network(ModelConfig(model="cnn")).state_dict()
Tensors = dict[str, torch.Tensor]


def without(state: Tensors, name: str) -> Tensors:
    return {other: tensor for other, tensor in state.items() if other != name}


def under(prefix: str, state: Tensors = PUBLISHED) -> Tensors:
    return {prefix + name: tensor for name, tensor in state.items()}


def pth(content: object) -> Callable[[Path], object]:
    return lambda path: write_pth(path, content)


def safetensors(changes: Tensors, left_out: str = "", **metadata: str) -> Callable[[Path], object]:
    """A small network's file with other tensors."""
    state = without(SMALL | changes, left_out)
    return lambda path: write(path, state, {"config": TINY.to_json()} | metadata)


def cut(path: Path) -> None:
    safetensors({})(path)
    os.truncate(path, path.stat().st_size - 1)


def archive_of_text(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "text")


def damaged_name(path: Path) -> None:
    write_pth(path, PUBLISHED)
    path.write_bytes(path.read_bytes().replace(b"linear_head", b"\xffinear_head"))


STATE_DICT = "expected a state dict of only tensors"
NEITHER = "expected safetensors or a PyTorch state dict, found neither"
FAMILY = "a published ViT, ViTBNFFN, ViTBN or CNN"
FLOATING, NO_CONFIG = "expected floating-point numbers, found", "expected a model config in the metadata, found none"
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no file": (lambda path: None, "expected a checkpoint, found No such file"),
    "folder": (Path.mkdir, "expected a checkpoint, found Is a directory"),
    "nothing": (Path.touch, NEITHER),
    "text": (lambda path: path.write_bytes(b"not a checkpoint"), NEITHER),
    "zeros": (lambda path: path.write_bytes(b"\x00" * 100), NEITHER),
    "ones": (lambda path: path.write_bytes(b"\xff" * 100), NEITHER),
    "a byte short": (cut, NEITHER),
    "archive of text": (archive_of_text, STATE_DICT),
    "damaged archive": (damaged_name, STATE_DICT),
    "old form": (
        lambda path: torch.save(PUBLISHED, path, _use_new_zipfile_serialization=False),
        "expected a zip file, as torch.save writes since PyTorch 1.6",
    ),
    "list": (pth([torch.zeros(1)]), STATE_DICT),
    "more than tensors": (pth({"epoch": 3, "weights": torch.zeros(1)}), STATE_DICT),
    "tensor": (pth(torch.zeros(1)), STATE_DICT),
    "names of no family": (
        pth({"layer1.0.weight": torch.zeros(1)}),
        f"tensor layer1.0.weight: expected a name of {FAMILY}",
    ),
    "number as name": (pth({1: torch.zeros(1)}), STATE_DICT),
    "no entry": (pth({}), f"expected {FAMILY}, found no tensor"),
    "two networks": (
        pth({"state_dict": PUBLISHED, "state_dict_ema": OTHER}),
        "expected one network, found state_dict and state_dict_ema",
    ),
    "two prefixes": (
        pth(under("model.") | under("ema_model.", OTHER)),
        "expected one network, found names of model. and ema_model.",
    ),
    "no block": (
        pth({name: tensor for name, tensor in PUBLISHED.items() if "layers" not in name}),
        f"expected {FAMILY}",
    ),
    "no head": (pth(without(PUBLISHED, "linear_head.weight")), f"expected {FAMILY}, found no tensor 'head.weight'"),
    "no variance": (
        pth(without(PUBLISHED, "transformer.layers.1.0.norm.BN.running_var")),
        "norm.running_var: expected (32,), found none",
    ),
    "no convolution": (pth(without(CNN, "conv1.weight")), f"expected {FAMILY}, found no tensor 'conv1.weight'"),
    **{
        f"scalar {name}": (pth(PUBLISHED | {name: torch.tensor(1.0)}), "dimensions, none of size 0, found ()")
        for name in ("to_patch_embedding.2.weight", "pos_embedding_random", "transformer.layers.0.1.Lin1.weight")
    },
    "oblong patches": (pth(PUBLISHED | {"to_patch_embedding.2.weight": torch.zeros(32, 48)}), "16 patches of 48"),
    "complex": (
        pth(PUBLISHED | {"linear_head.bias": PUBLISHED["linear_head.bias"] + 1j}),
        f"tensor head.bias: {FLOATING} complex64",
    ),
    "missing": (safetensors({}, "head.bias"), "tensor head.bias: expected (10,), found none"),
    "misshaped": (safetensors({"head.bias": torch.zeros(9)}), "tensor head.bias: expected (10,), found (9,)"),
    "surplus": (safetensors({"tail.bias": torch.zeros(2)}), "tensor tail.bias: expected no such tensor, found (2,)"),
    "a name that commands the terminal": (
        safetensors({"\x1b[2Jgone\n": torch.zeros(1)}),
        "tensor '\\x1b[2Jgone\\n': expected no such tensor",
    ),
    **{
        str(dtype): (safetensors({"head.bias": torch.zeros(10).to(dtype)}), f"tensor head.bias: {FLOATING} ")
        for dtype in (torch.complex64, torch.int64, torch.bool, torch.float8_e4m3fn)
    },
    "no metadata": (lambda path: write(path, SMALL), NO_CONFIG),
    "no config": (lambda path: write(path, SMALL, {"metrics": "{}"}), NO_CONFIG),
    "half a config": (
        safetensors({}, config="{"),
        "model config: expected a JSON object of ModelConfig fields, found Expecting property name",
    ),
    "another config": (safetensors({}, config='{"depth": 0}'), "depth: expected an integer of at least 1"),
    **{
        f"metrics {text}": (safetensors({}, metrics=text), f"metrics: expected {said}")
        for text, said in {
            "?": "a JSON object, found Expecting value",
            "[]": "a JSON object, found list",
            '{"test_accuracy": NaN}': "a JSON object, found the constant NaN",
            '{"test_accuracy": "high"}': "test_accuracy to be a number from 0 to 1, found 'high'",
            '{"test_accuracy": [1]}': "test_accuracy to be a number from 0 to 1, found '[1]'",
            '{"test_accuracy": 99.5}': "test_accuracy to be a number from 0 to 1, found '99.5'",
            '{"held_out_accuracy": true}': "held_out_accuracy to be a number from 0 to 1, found 'True'",
            '{"temperature": 0}': "temperature to be a number above 0, up to 1000, found '0'",
            '{"temperature": 1e999}': "temperature to be a number above 0, up to 1000, found 'inf'",
            '{"epochs": 1.5}': "epochs to be an integer of at least 1, found '1.5'",
            '{"dataset": "a\\nb"}': "dataset to be a printable name, found 'a\\nb'",
            '{"options": 7}': "options to be an object, found '7'",
        }.items()
    },
}
