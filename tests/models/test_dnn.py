import pytest
import torch
from torch import nn

from models.config import ModelConfig
from models.macs import macs_per_image
from models.registry import build, randomise_norms


def network(model, **fields):
    torch.manual_seed(0)
    built = build(ModelConfig(model=model, **fields)).eval()
    randomise_norms(built)
    return built.double()


def pixels(*shape):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("model", ["dnn", "dnnbn"])
def test_logits_are_the_formula(model):
    built = network(model)
    x = pixels(4, 1, 28, 28)
    expected = x.reshape(4, 784)
    for number in (1, 2, 3):
        expected = built.get_submodule(f"linear{number}")(expected)
        if model == "dnnbn":
            norm = built.get_submodule(f"norm{number}")
            centred = (expected - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
            expected = norm.weight * centred + norm.bias
        expected = 1 / (1 + torch.exp(-expected))
        assert expected.shape == (4, 100)
    torch.testing.assert_close(built(x), built.head(expected), rtol=0, atol=1e-12)


def test_batch_norm_is_the_only_difference():
    plain, normed = network("dnn").state_dict(), network("dnnbn").state_dict()
    assert {name.split(".")[0] for name in normed.keys() - plain.keys()} == {"norm1", "norm2", "norm3"}
    assert plain.keys() <= normed.keys()


@pytest.mark.parametrize("model", ["dnn", "dnnbn"])
def test_other_images(model):
    fields = {"channels": 3, "image_size": (5, 7), "num_classes": 2, "labels": ("no", "yes")}
    built = network(model, **fields)
    assert built(pixels(2, 3, 5, 7)).shape == (2, 2)
    assert built.config == ModelConfig(model=model, **fields)


def test_work():
    assert macs_per_image(network("dnnbn")) == 784 * 100 + 2 * 100 * 100 + 100 * 10
    with pytest.raises(TypeError, match="Linear: expected a network of this project"):
        macs_per_image(nn.Linear(3, 3))
