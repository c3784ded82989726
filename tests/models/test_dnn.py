import pytest
import torch
from random_networks import network
from torch import nn

from models.config import ModelConfig
from models.macs import macs_per_image


def pixels(*shape):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("model", ["dnn", "dnnbn"])
def test_logits_are_the_formula(model):
    built = network(ModelConfig(model=model)).double()
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


def test_work():
    assert macs_per_image(network(ModelConfig(model="dnnbn"))) == 784 * 100 + 2 * 100 * 100 + 100 * 10
    with pytest.raises(TypeError, match="Linear: expected a network of this project"):
        macs_per_image(nn.Linear(3, 3))
