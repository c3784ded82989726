"""The formula against PyTorch's own counter: equal, not close."""

from dataclasses import replace

import pytest
from pytorch_macs import macs_per_image

from models.networks.config import MODEL_NAMES, ModelConfig
from models.networks.costs import network_macs
from models.networks.registry import build

WITHOUT = ("dnn", "dnnbn", "vit-dtn")
NETWORKS = {
    **{name: ModelConfig(model=name, depth=2) for name in MODEL_NAMES if name not in WITHOUT},
    "colour": ModelConfig(channels=3, image_size=(32, 24), patch_size=(8, 4), depth=1),
    "a CNN in colour": ModelConfig(model="cnn", channels=3, image_size=(32, 25)),
    "a CNN of an odd width": ModelConfig(model="cnn", dim=97),
    "mean": ModelConfig(depth=1, pool="mean"),
    "no output projection": ModelConfig(depth=2, heads=1, dim_head=64),
    "class attention": ModelConfig(depth=3, heads=4, class_attention=(32, 16), standardise=True),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_formula_counts_as_pytorch(name: str) -> None:
    config = NETWORKS[name]
    assert network_macs(config) == macs_per_image(build(config).eval())
    classes = replace(config, num_classes=11, labels=tuple("0123456789x"))
    assert network_macs(classes) > network_macs(config), "one class more costs more"


@pytest.mark.parametrize("name", WITHOUT)
def test_a_network_without_a_formula_gets_no_number(name: str) -> None:
    with pytest.raises(ValueError, match=f"found {name}"):
        network_macs(ModelConfig(model=name))


def test_the_count_of_a_network_of_linear_layers() -> None:
    assert macs_per_image(build(ModelConfig(model="dnnbn")).eval()) == 784 * 100 + 2 * 100 * 100 + 100 * 10
