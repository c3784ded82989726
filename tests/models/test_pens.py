import pytest
import torch

from models.training import pens as module
from models.training.augmentation import augmentation
from models.training.pens import pens


@pytest.fixture(scope="module")
def images(digits):
    return torch.tensor(digits.train_images[:1000]) / 255


def ink(images):
    return images.sum((1, 2, 3))


def test_a_share_changes_and_stays_a_picture(images):
    torch.manual_seed(0)
    before = torch.clone(images)
    changed = pens(images)
    assert (changed.shape, changed.dtype) == (images.shape, torch.float32)
    assert 0 <= changed.min() < changed.max() <= 1
    share = (changed != images).flatten(1).any(dim=1).float().mean()
    assert module.CHANGED - 0.12 < share < module.CHANGED + 0.05, "some draws leave a picture as it is"
    assert torch.equal(images, before), "the caller's images stay"


def test_the_same_draw_gives_the_same_pictures_after_elastic_maps(images):
    pictures = []
    for _ in range(2):
        torch.manual_seed(3)
        pictures.append(augmentation("pens")(images[:50]))
    assert torch.equal(*pictures)
    assert (pictures[0] != images[:50]).flatten(1).any(dim=1).all(), "elastic maps move every picture"


@pytest.mark.parametrize("shape", [(3, 32, 20), (1, 28, 28)])
def test_colours_and_other_sides(shape):
    torch.manual_seed(0)
    x = torch.rand(60, *shape)
    assert pens(x).shape == x.shape


def test_strokes_get_thinner_and_thicker(images):
    torch.manual_seed(0)
    thin, thick = module._thinner(images), module._thicker(images)
    assert (thin <= images).all()
    assert (thick >= images).all()
    assert ((ink(thin) / ink(images)).min(), (ink(thick) / ink(images)).max()) < (0.5, 3)
    wholly = (thin == -torch.nn.functional.max_pool2d(-images, 3, 1, 1)).flatten(1).all(dim=1)
    assert 0.25 < wholly.float().mean() < 0.55, "1.5 - 1 of 1.5 - 0.2"


def test_coarse_pictures_have_few_pixels_and_as_much_ink(images):
    torch.manual_seed(0)
    coarse = module._coarse(images)
    assert 0.9 < (ink(coarse) / ink(images)).median() < 1.1
    detail = [picture.diff(dim=-1).abs().sum((1, 2, 3)).median() for picture in (coarse, images)]
    assert detail[0] < 0.95 * detail[1]
    steps = module._resizings(28)
    assert steps.shape == (8 * 9, 2, 14, 28)
    # Rows of a matrix are shares of pixels: what shrinks keeps a constant, what enlarges too.
    shrunk = steps[:, 0].sum(-1)
    assert ((shrunk - 1).abs().lt(1e-5) | shrunk.eq(0)).all()
    torch.testing.assert_close(steps[:, 1].sum(1), torch.ones(72, 28))


def test_a_resizing_is_torchs_own(images):
    small = module._resizing(28, 9, "area")
    expected = torch.nn.functional.interpolate(images[:5], (9, 9), mode="area")
    torch.testing.assert_close(small @ images[:5] @ small.T, expected)
    large = module._resizing(9, 28, "bicubic")
    expected = torch.nn.functional.interpolate(expected, (28, 28), mode="bicubic")
    torch.testing.assert_close(large @ (small @ images[:5] @ small.T) @ large.T, expected, rtol=0, atol=1e-5)


def test_blur_is_a_gaussian_of_its_sigma():
    point = torch.zeros(2, 1, 29, 29)
    point[:, :, 14, 14] = 1
    sigma = torch.tensor([0.8, 1.5]).reshape(2, 1, 1, 1)
    blur = module.gaussians(29, sigma)
    spot = blur @ point @ blur.mT
    position = torch.arange(29.0) - 14
    measured = (spot.sum(2) * position**2).sum(-1).sqrt().flatten()
    torch.testing.assert_close(measured, sigma.flatten(), rtol=0.02, atol=0)
    torch.testing.assert_close(spot.sum((1, 2, 3)), torch.ones(2), rtol=1e-3, atol=0)


def test_stretching_moves_the_edges_alone():
    line = torch.zeros(1, 1, 29, 29)
    line[..., 9:20] = 1  # 5.5 pixels to either side of the middle
    factors = torch.tensor([0.8, 1.0, 1.25]).reshape(3, 1, 1, 1)
    wide = line @ module._stretches(29, factors).mT
    torch.testing.assert_close(wide[:, 0, 0].sum(-1), 11 * factors.flatten(), rtol=0.03, atol=0)
    torch.testing.assert_close(wide[1:2], line)
    middle = (wide[:, 0, 0] * torch.arange(29.0)).sum(-1) / wide[:, 0, 0].sum(-1)
    torch.testing.assert_close(middle, torch.full((3,), 14.0))


def test_noise_and_contrast_have_their_ranges():
    torch.manual_seed(0)
    grey = torch.full((2000, 1, 28, 28), 0.5)
    contrast = module._contrasted(grey).mean((1, 2, 3)) / 0.5
    assert torch.stack((contrast.min(), contrast.max())).sub(torch.tensor(module.CONTRAST)).abs().max() < 0.01
    noise = module._noisy(grey).std((1, 2, 3))
    assert (noise.min() < 0.01, 0.23 < noise.max() < 0.28) == (True, True)
