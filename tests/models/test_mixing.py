import math

import pytest
import torch
from torch.nn.functional import one_hot

from models.networks.config import ModelConfig
from models.training.loop import train
from models.training.mixing import as_probabilities, mixed
from models.training.recipe import TrainingOptions


@pytest.mark.parametrize("alpha", [1e-6, 0.4, 1.0, 100.0])
def test_a_picture_is_mixed_as_its_target_is(alpha):
    """Each picture is an even field of its label, so its pixels tell what its target must be."""
    torch.manual_seed(0)
    labels = torch.arange(200) % 2
    pixels, targets = mixed(labels.float().view(-1, 1, 1, 1).expand(-1, 3, 4, 5), one_hot(labels, 2).float(), alpha)
    assert pixels.shape == (200, 3, 4, 5)
    torch.testing.assert_close(pixels, targets[:, 1].view(-1, 1, 1, 1).expand_as(pixels), rtol=0, atol=1e-6)
    torch.testing.assert_close(targets.sum(1), torch.ones(200), rtol=0, atol=1e-6)
    own = targets.gather(1, labels[:, None])
    assert own.min() >= 0.5 - 1e-6, "the larger part is its own"
    assert (own < 0.99).any() == (alpha > 0.1)
    if alpha == 100:
        assert own.min() < 0.55


def test_the_parts_follow_beta():
    torch.manual_seed(0)
    targets = torch.eye(2).repeat(20_000, 1)
    own = mixed(targets.view(-1, 1, 1, 2), targets, 0.4)[1].gather(1, (torch.arange(40_000) % 2)[:, None])
    # E max(l, 1 - l) of Beta(0.4, 0.4) is 0.8531; half of the partners have the same label
    expected = 1 - (1 - beta_mean_of_larger(0.4)) / 2
    assert own.mean().item() == pytest.approx(expected, abs=0.004)


def beta_mean_of_larger(alpha: float, steps: int = 200_000) -> float:
    x = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    density = (x * (1 - x)) ** (alpha - 1)
    return float((torch.maximum(x, 1 - x) * density).sum() / density.sum())


def test_labels_become_probabilities_once():
    labels = torch.tensor([2, 0])
    once = as_probabilities(labels, 3)
    assert once.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert as_probabilities(once, 3) is once


def test_a_training_mixes_and_repeats_itself(digits, tmp_path):
    few = digits.first(64, 20)
    losses = {}
    for name, alpha in (("plain", 0.0), ("mixed", 1.0), ("again", 1.0)):
        options = TrainingOptions(epochs=2, batch_size=16, mixup=alpha, device="cpu")
        *_, last = train(ModelConfig(model="cnn"), few, options, tmp_path / f"{name}.safetensors")
        losses[name] = last.training_loss
    assert losses["mixed"] == losses["again"]
    assert losses["mixed"] > losses["plain"] + 0.1, "no network is sure of mixed pictures"
    assert math.isfinite(losses["mixed"])
