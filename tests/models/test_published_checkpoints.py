from dataclasses import replace

import numpy as np
import pytest
import torch
from random_networks import network
from saved_networks import NAMES, PUBLISHED_SHAPE, VITBN_NAMES, image_batch, published, write_pth

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
