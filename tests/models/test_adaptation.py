"""Statistics of a new source: those of the images, and nothing else changes."""

import pytest
import torch

from models.adaptation import AdaptationError, adapt
from models.config import ModelConfig
from models.data import load_digits
from models.data.digits import as_coarse
from models.registry import build, randomise_norms

TINY = ModelConfig(dim=16, depth=1, heads=2, dim_head=8, mlp_dim=16)


@pytest.fixture
def images():
    return torch.tensor(load_digits().test_images[:40])


@pytest.fixture
def network():
    torch.manual_seed(0)
    built = build(TINY).eval()
    randomise_norms(built)
    return built


def test_the_copy_answers_as_batch_statistics_do(network, images):
    adapted = adapt(network, images)
    state, other = network.state_dict(), adapted.state_dict()
    changed = {name for name in state if not torch.equal(state[name], other[name])}
    assert changed == {name for name in state if "running_" in name or "num_batches" in name}
    first = adapted.patch_norm.norm
    rows = network.to_patches(images / 255).reshape(-1, 49)
    torch.testing.assert_close(first.running_mean, rows.mean(0), rtol=0, atol=1e-6)
    torch.testing.assert_close(first.running_var, rows.var(0), rtol=0, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(adapted(images / 255), network.train()(images / 255), rtol=0, atol=0.02)
        assert (adapted(images / 255) - network.eval()(images / 255)).abs().max() > 0.1


@pytest.mark.parametrize(("statistic", "moved", "kept"), [("mean", "mean", "var"), ("variance", "var", "mean")])
def test_one_statistic_alone(network, images, statistic, moved, kept):
    norm, before = adapt(network, images, (statistic,)).patch_norm.norm, network.patch_norm.norm
    assert torch.equal(norm.get_buffer(f"running_{kept}"), before.get_buffer(f"running_{kept}"))
    assert not torch.equal(norm.get_buffer(f"running_{moved}"), before.get_buffer(f"running_{moved}"))
    assert norm.momentum == before.momentum


def test_without_batch_norm(images):
    with pytest.raises(AdaptationError, match="expected a network with BatchNorm, found VisionTransformer without"):
        adapt(build(ModelConfig(model="vit", depth=1)), images)


def test_coarse_images_have_the_layout_of_the_digits():
    digits = load_digits()
    coarse = as_coarse(digits.test_images[0])
    assert (coarse.shape, coarse.dtype) == ((1, 28, 28), digits.test_images.dtype)
    assert abs(int(coarse.astype(int).sum()) / int(digits.test_images[0].astype(int).sum()) - 1) < 0.1
