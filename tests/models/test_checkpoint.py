import errno
import hashlib
import os
from dataclasses import replace

import pytest
import torch
from random_networks import network
from saved_networks import TINY, image_batch, refusal, write

from models.checkpoints.checkpoint import CheckpointError, load, read_config, save
from models.checkpoints.metrics import MetricsError
from models.checkpoints.tensor_check import WrongFile, check_tensors, form_of
from models.networks.config import ModelConfig


@pytest.mark.parametrize("model", ["vit", "vitbnffn", "vitbn", "cnn", "dnn", "dnnbn"])
def test_round_trip_bit_for_bit(tmp_path, model):
    config = replace(TINY, model=model, pos_emb="pe1d") if model.startswith("vit") else ModelConfig(model=model)
    written = network(config)
    path = tmp_path / "folder" / "model.safetensors"
    save(path, written, config, {"epochs": 3})
    read = load(path)
    assert read.config == config
    assert read.metrics == {"epochs": 3}
    assert read.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert not any(module.training for module in read.model.modules())
    torch.testing.assert_close(read.model.state_dict(), written.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(("heads", "late"), [((2, 4), (1, 16)), ((1, 16), (2, 4)), ((4, 16), (3, 5))])
def test_a_projection_may_be_in_the_last_block_alone_or_in_all_others(tmp_path, heads, late):
    config = replace(TINY, dim=16, heads=heads[0], dim_head=heads[1], class_attention=late)
    written = network(config)
    save(tmp_path / "late.safetensors", written, config, {})
    read = load(tmp_path / "late.safetensors")
    assert read.config == config
    torch.testing.assert_close(read.model.state_dict(), written.state_dict(), rtol=0, atol=0)
    assert "expected all 3 blocks, found --depth 1" in refusal(tmp_path / "late.safetensors", 1)
    tensors = {name: form_of(tensor) for name, tensor in written.state_dict().items()}
    for name in (name for name in tensors if name.endswith("out.weight")):
        with pytest.raises(WrongFile, match=f"tensor {name}: expected .*, found none"):
            check_tensors(config, {other: form for other, form in tensors.items() if other != name})


def test_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe: expected a file or nothing, found something else"):
        save(tmp_path / "pipe", network(TINY), TINY, {})
    assert [path.is_fifo() for path in tmp_path.iterdir()] == [True]


def test_first_blocks(saved):
    read = load(saved, depth=2)
    assert read.config == replace(TINY, depth=2)
    whole = load(saved, depth=3)
    assert (read.metrics, whole.metrics) == ({}, {"test_accuracy": 0.5}), "measured at another depth"
    del whole.model.blocks[2]
    images = image_batch(TINY)
    torch.testing.assert_close(read.model(images), whole.model(images), rtol=0, atol=0)


def test_what_a_file_is_its_bytes_say(saved, tmp_path):
    renamed = saved.rename(tmp_path / "tiny.pth")
    assert load(renamed).config == read_config(renamed) == TINY


@pytest.mark.parametrize(
    "metrics",
    [
        *({"test_accuracy": value} for value in (float("nan"), "high")),
        *({"evidence_limit": value} for value in (float("nan"), float("inf"), "1", True)),
        *({"x": value} for value in (float("inf"), {1, 2})),
        {"epochs": 0},
    ],
)
def test_metrics_are_checked_where_they_are_written(tmp_path, metrics):
    with pytest.raises(MetricsError, match=r"^metrics: expected "):
        save(tmp_path / "x.safetensors", network(TINY), TINY, metrics)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("depth", [0, -1, 4])
def test_depth_that_is_not_there(saved, tmp_path, depth):
    assert refusal(saved, depth).endswith(f"expected at least {depth} blocks (--depth {depth}), found 3 blocks")
    config = ModelConfig(model="cnn")
    save(tmp_path / "cnn.safetensors", network(config), config, {})
    assert refusal(tmp_path / "cnn.safetensors", 1).endswith("found no transformer")


@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path, monkeypatch, existing):
    path = tmp_path / "model.safetensors"
    if existing:
        save(path, network(TINY), TINY, {})
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'$"):
        save(path, network(replace(TINY, depth=1)), replace(TINY, depth=1), {})
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("content", [None, b"", b"no checkpoint"], ids=["no file", "empty", "text"])
def test_config_of_no_checkpoint(tmp_path, content):
    path = tmp_path / "x.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x\.safetensors: expected safetensors"):
        read_config(path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read_as_float32(tmp_path, dtype):
    tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in network(TINY).state_dict().items()}
    model = load(write(tmp_path / "half.safetensors", tensors, {"config": TINY.to_json()})).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
