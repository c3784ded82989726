from dataclasses import replace

import numpy as np
import pytest
import torch
from random_networks import network
from refused_files import PUBLISHED, under
from saved_networks import NAMES, PUBLISHED_SHAPE, VITBN_NAMES, image_batch, published, write_pth
from torch import nn
from torch.optim.swa_utils import AveragedModel

from models.checkpoints.checkpoint import UntrainedBlockWarning, load
from models.data import load_dataset
from models.networks.config import INPUT_SCALE, ModelConfig
from models.networks.registry import build


@pytest.mark.parametrize("depth", [1, 6])
@pytest.mark.filterwarnings("ignore::models.checkpoints.checkpoint.UntrainedBlockWarning")
def test_published_checkpoint_gives_its_logits(mnist_dir, reference_dir, depth):
    images = torch.tensor(load_dataset("mnist", mnist_dir).test_images[:64]) * INPUT_SCALE
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


class Holder(nn.Module):
    """Names the tensors as the study does."""

    def __init__(self):
        super().__init__()
        for name, tensor in PUBLISHED.items():
            owner = self
            *parents, leaf = name.split(".")
            for parent in parents:
                if not hasattr(owner, parent):
                    owner.add_module(parent, nn.Module())
                owner = getattr(owner, parent)
            owner.register_buffer(leaf, tensor.clone())


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (PUBLISHED, ""),
        (under("module."), "names without their prefix module."),
        (under("model."), "names without their prefix model."),
        (under("module._orig_mod."), "names without their prefix module., names without their prefix _orig_mod."),
        ({"state_dict": PUBLISHED, "epoch": 3, "best": 0.9, "optimizer": {"state": {}}}, "the entry state_dict"),
        ({"model": under("module."), "epoch": 3}, "the entry model, names without their prefix module."),
        ({"state_dict_ema": PUBLISHED, "epoch": 3}, "the averaged weights of the entry state_dict_ema"),
        (AveragedModel(Holder()).state_dict(), "the averaged weights of an AveragedModel, names without their prefix"),
        (nn.DataParallel(Holder()).state_dict(), "names without their prefix module."),
    ],
)
def test_the_network_is_taken_out_of_its_wrapper(tmp_path, state, said):
    read = load(write_pth(tmp_path / "theirs.pth", state))
    torch.testing.assert_close(read.model.state_dict(), network(PUBLISHED_SHAPE).state_dict(), rtol=0, atol=0)
    assert read.note.startswith(said)
    assert bool(read.note) == bool(said)
