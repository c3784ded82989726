import math

import pytest
import torch
from torch.nn.functional import one_hot

from models.networks.config import ModelConfig
from models.training.loop import train
from models.training.mixing import as_probabilities, mixed, mixing, pasted
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


def test_a_rectangle_of_another_picture_counts_as_much_as_it_covers():
    torch.manual_seed(0)
    labels = torch.arange(50) % 2
    even = labels.float().view(-1, 1, 1, 1).expand(-1, 3, 20, 30)
    shares = []
    for _ in range(300):
        pixels, targets = pasted(even, one_hot(labels, 2).float())
        torch.testing.assert_close(pixels.mean((1, 2, 3)), targets[:, 1], rtol=0, atol=1e-5)
        changed = (pixels != even).any(0).any(0)  # (20, 30)
        rows, columns = changed.any(1), changed.any(0)
        assert torch.equal(changed, rows[:, None] & columns), "a rectangle"
        shares.append(changed.float().mean().item())
    assert min(shares) < 0.02
    assert max(shares) > 0.5
    assert (even == labels.view(-1, 1, 1, 1)).all(), "the given pictures stay"


@pytest.mark.parametrize(("mixup", "cutmix", "plain", "cut"), [(0, 0, 100, 0), (0, 0.5, 50, 50), (1, 1, 0, 100)])
def test_the_share_of_the_batches(mixup, cutmix, plain, cut):
    torch.manual_seed(0)
    pixels, targets = torch.arange(2.0).view(2, 1, 1, 1).expand(2, 1, 28, 28), torch.eye(2)
    found = [mixing(mixup, cutmix)(pixels, targets)[0] for _ in range(200)]
    whole = [((each == 0) | (each == 1)).all().item() for each in found]
    same = [torch.equal(each, pixels) for each in found]
    assert sum(whole) == 200 if not mixup or cutmix == 1 else sum(whole) < 200
    assert sum(same) / 2 >= plain - 15  # half of the partners are the picture itself
    assert 100 - sum(same) / 2 >= cut / 2 - 15


def test_labels_become_probabilities_once():
    labels = torch.tensor([2, 0])
    once = as_probabilities(labels, 3)
    assert once.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert as_probabilities(once, 3) is once


def test_a_training_mixes_and_repeats_itself(digits, tmp_path):
    few = digits.first(64, 20)
    losses = {}
    for name, alpha in (("plain", 0.0), ("mixed", 1.0), ("again", 1.0)):
        options = TrainingOptions(epochs=2, batch_size=16, mixup=alpha, cutmix=alpha / 2, device="cpu")
        *_, last = train(ModelConfig(model="cnn"), few, options, tmp_path / f"{name}.safetensors")
        losses[name] = last.training_loss
    assert losses["mixed"] == losses["again"]
    assert losses["mixed"] > losses["plain"] + 0.1, "no network is sure of mixed pictures"
    assert math.isfinite(losses["mixed"])
