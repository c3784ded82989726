import itertools

import pytest
import torch

from models.training.augmentation import ELASTIC_PIXELS, _affine, _displacements, _mapped, _zoom_out, augmentation


@pytest.mark.parametrize("name", ["light", "elastic", "study"])
def test_distortions(digits, name):
    torch.manual_seed(0)
    images = torch.tensor(digits.train_images[:200]) / 255
    assert augmentation("none")(images) is images
    distorted = augmentation(name)(images)
    assert distorted.shape == images.shape
    assert distorted.dtype == torch.float32
    assert 0 <= distorted.min() < distorted.max() <= 1
    changed = (distorted != images).flatten(1).any(dim=1).float().mean()
    assert changed == 1, "every image, each in its own way"
    ink = distorted.sum((1, 2, 3)) / images.sum((1, 2, 3))
    assert 0.9 < ink.median() < 1.1
    shrunk = (ink < 0.4).float().mean()  # zoomed out to a half, the ink covers a quarter
    assert (0.1 < shrunk < 0.3) if name == "study" else shrunk == 0


def test_zoomed_out_pictures_are_whole_and_anywhere_in_the_frame():
    torch.manual_seed(0)
    zoomed = _zoom_out(torch.ones(3000, 1, 28, 28))
    share = zoomed.mean((1, 2, 3))
    small = share < 0.5
    assert 0.17 < small.float().mean() < 0.23
    assert share[~small].min() == 1
    by = share[small].rsqrt()  # a picture that left the frame would look smaller
    assert (2.0 - 1e-3) < by.min() < 2.05
    assert 2.95 < by.max() < (3.0 + 1e-3)
    edge = (torch.arange(28) + 0.5 - 14) / 14
    centre = (zoomed[small].sum((1, 2)) * edge).sum(1) / zoomed[small].sum((1, 2, 3))  # in halves of the side
    assert (centre.abs() <= 1 - 1 / by + 1e-3).all()
    assert (centre.abs() / (1 - 1 / by)).max() > 0.97


@pytest.mark.parametrize("side", [28, 32])
def test_displacements_are_smooth_and_small(side):
    torch.manual_seed(0)
    fields = _displacements(100, side, side - 4) * torch.tensor([(side - 4) / 2, side / 2])  # pixels
    assert fields.shape == (100, side, side - 4, 2)
    largest = fields.abs().amax(dim=(1, 2, 3))
    assert 1.4 < largest.max() <= ELASTIC_PIXELS
    assert largest.min() < 0.1, "some images are left nearly as they are"
    step = fields.diff(dim=1).abs().amax(dim=(1, 2, 3)) / largest
    assert step.max() < 0.5, "neighbours move together"


def test_pixels_are_mapped_as_by_affine_grid():
    torch.manual_seed(0)
    maps = _affine(torch.rand(5, 5) * 2 - 1)
    expected = torch.nn.functional.affine_grid(maps, [5, 1, 28, 24], align_corners=False)
    torch.testing.assert_close(_mapped(maps, 28, 24), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(_affine(torch.zeros(1, 5)), torch.eye(2, 3)[None], rtol=0, atol=1e-6)
    turned = _affine(torch.tensor([[1.0, 0, 0, 0, 0]]))[0, :, :2]
    torch.testing.assert_close(turned @ turned.T, torch.eye(2), rtol=0, atol=1e-6, msg="a turn keeps all distances")


def test_shades_are_a_power_and_a_factor_of_the_turned_pictures():
    images = torch.rand(1000, 1, 28, 28, generator=torch.Generator().manual_seed(1)) / 4 + 0.01
    torch.manual_seed(0)
    turned = augmentation("turn")(images).flatten(1)
    torch.manual_seed(0)
    shaded = augmentation("turn-shade")(images).flatten(1)
    assert 0 <= shaded.min() < shaded.max() <= 1
    x, y = turned.double().log(), shaded.double().log()
    gamma = (y[:, :1] - y[:, 300:301]) / (x[:, :1] - x[:, 300:301])
    contrast = y[:, :1] - gamma * x[:, :1]
    sure = (x[:, 0] - x[:, 300]).abs() > 0.1
    assert (torch.minimum(gamma * x + contrast, torch.zeros(())) - y)[sure].abs().max() < 1e-4
    for found, most in ((gamma[sure].log(), 0.9), (contrast[sure], 0.5)):
        assert -most - 1e-4 < found.min() < -0.95 * most
        assert 0.95 * most < found.max() < most + 1e-4


def test_half_of_the_coloured_pictures_change_their_channels():
    images = torch.rand(2000, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    turned = augmentation("turn")(images)
    torch.manual_seed(0)
    found = augmentation("turn-colour")(images)
    forms = torch.stack(
        [
            torch.stack([side - turned[:, channel] if side else turned[:, channel] for channel, side in chosen], 1)
            for order in itertools.permutations(range(3))
            for chosen in itertools.product(*(((channel, 0), (channel, 1)) for channel in order))
        ],
        1,
    )  # (2000, 48, 3, 4, 4), the first as it was
    same = (forms == found[:, None]).flatten(2).all(2)
    assert same.any(1).all()
    counts = same.sum(0)
    assert 950 < counts[0] < 1100, "half, and a 48th of the others"
    assert 5 < counts[1:].min() <= counts[1:].max() < 45


def test_crop_and_flip_cut_a_window_and_mirror_half():
    torch.manual_seed(0)
    images = torch.rand(100, 3, 8, 8) + 0.1
    found = augmentation("crop-flip")(images)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    windows = padded.unfold(2, 8, 1).unfold(3, 8, 1).permute(0, 2, 3, 1, 4, 5).flatten(1, 2)  # (100, 81, 3, 8, 8)
    plain = (windows == found[:, None]).flatten(2).all(2)  # (100, 81)
    mirrored = (windows.flip(-1) == found[:, None]).flatten(2).all(2)
    assert (plain | mirrored).any(1).all()
    assert 30 < mirrored.any(1).sum() < 70
    assert (plain | mirrored).any(0).sum() > 50, "of the 81 windows"


@pytest.mark.parametrize("channels", [1, 3])
def test_rolled_pictures_come_back_at_the_other_side(channels):
    torch.manual_seed(0)
    images = torch.rand(100, channels, 5, 7)
    found = augmentation("roll")(images)
    rolled = torch.stack([images.roll((down, right), (2, 3)) for down in range(5) for right in range(7)], 1)
    same = (rolled == found[:, None]).flatten(2).all(2)  # (100, 35)
    assert (same.sum(1) == 1).all()
    assert same.any(0).sum() > 30


@pytest.mark.parametrize("channels", [1, 3])
def test_flip_and_erase_change_only_a_rectangle_of_a_moved_picture(channels):
    torch.manual_seed(0)
    images = torch.rand(200, channels, 28, 28) + 0.1
    found = augmentation("flip-erase")(images)
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
    windows = padded.unfold(2, 28, 1).unfold(3, 28, 1).permute(0, 2, 3, 1, 4, 5).flatten(1, 2)  # (200, 9, C, 28, 28)
    both = torch.cat((windows, windows.flip(-1)), 1)
    kept = (both == found[:, None]).all(2)  # (200, 18, 28, 28)
    best = kept.flatten(2).sum(2).argmax(1)
    changed = ~kept[torch.arange(200), best]
    assert (found.masked_select(changed[:, None]) == 0).all()
    rows, columns = changed.any(2), changed.any(1)
    assert torch.equal(changed, rows[:, :, None] & columns[:, None]), "a rectangle"
    sides = torch.stack((rows.sum(1), columns.sum(1)))[:, changed.flatten(1).any(1)]
    assert sides.max() <= 14
    assert sides.float().mean() > 6
    assert 70 < sides.shape[1] < 130, "half of them"
    assert 70 < (best >= 9).sum() < 130, "half are mirrored"
    assert len(best.unique()) == 18, "every place, mirrored or not"
