"""Random distortions of training images, float (B, C, H, W) in [0, 1], by PyTorch's generator.

- `study`, as published: rotation by up to 20 degrees, translation by up to a fifth of the side, and with probability
  0.2 a zoom-out by r from U(2, 3) to anywhere in the frame. Rotation and translation are bilinear here, nearest in the
  publication. The zoom-out averages 9 bilinear samples a pixel; the publication uses Pillow's bilinear resize.
- `light`: a small affine map. `elastic` adds smooth displacements of up to 1.5 pixels (Simard et al., "Best Practices
  for Convolutional Neural Networks", 2003). `pens` adds the changes of models/training/pens.py to `elastic`.
- `crop-flip`, for photos: crops after 4 black pixels of padding, half of them mirrored (He et al., "Deep Residual
  Learning", 2016, section 4.2).
- `flip-erase`, for things that fill their frame: half of the images are mirrored, all move by up to a 28th of the side,
  and half lose a rectangle of a seventh to half of each side (Zhong et al., "Random Erasing Data Augmentation", 2020).
- `turn`, for pictures of anything: the affine map of `elastic` at half its strength; pixels of the edge fill the rest.
- `turn-shade`, for few pictures of anything: `turn`, then a picture x becomes min(1, c x^g); ln g is from
  U(-0.9, 0.9), ln c from U(-0.5, 0.5).
- `turn-colour`, for pictures of anything in colour: `turn`, then half of the pictures get their channels in a random
  order, each inverted with probability 1/2. Only where colours mean nothing: a class that is a colour is lost.
- `roll`, for textures and noise: rows and columns move by any number of pixels and come back at the other side. Levels
  stay as they are; places are lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.networks.config import Augmentation
from models.training.pens import gaussians, pens, uniform

ELASTIC_SIGMA = 4.0  # pixels
ELASTIC_PIXELS = 1.5
ZOOM_OUT_SHARE = 0.2  # of the images
SAMPLES = 3  # per side of a zoomed-out pixel
GAMMA, CONTRAST = 0.9, 0.5  # largest natural logarithms, in either direction
MOVES = 28  # a picture moves by up to 1/28 of its side
ERASED_SHARE, ERASED = 0.5, (1 / 7, 1 / 2)  # of the images, and of each side


def augmentation(name: Augmentation) -> Callable[[Tensor], Tensor]:
    """The distortion of that name: float images (B, C, H, W) in [0, 1] -> the same shape."""
    if name == "none":
        return nn.Identity()
    if name == "crop-flip":
        return _crop_flip
    if name == "flip-erase":
        return lambda images: _erased(_moved(_mirrored(images)))
    if name == "turn":
        return _turned
    if name == "turn-shade":
        return lambda images: _shaded(_turned(images))
    if name == "turn-colour":
        return lambda images: _recoloured(_turned(images))
    if name == "roll":
        return _rolled
    if name == "elastic":
        return _elastic
    if name == "pens":
        return lambda images: pens(_elastic(images))
    from kornia.augmentation import RandomAffine

    if name == "light":
        turn, slant = math.degrees(0.2), math.degrees(0.15)
        light: nn.Module = RandomAffine(turn, translate=(0.075, 0.075), scale=(0.88, 1.12), shear=slant, p=1.0)
        return light
    move = RandomAffine(degrees=20.0, translate=(0.2, 0.2), p=1.0)
    return lambda images: _zoom_out(move(images))


def _zoom_out(images: Tensor) -> Tensor:
    chosen = uniform(images, 0, 1) < ZOOM_OUT_SHARE
    if not chosen.any():
        return images
    count, channels, height, width = images[chosen].shape
    by = images.new_empty(count).uniform_(2, 3)
    reach = (1 - 1 / by)[:, None] * by[:, None]  # the centre may move by 1 - 1/r halves of the side
    shift = images.new_empty(count, 2).uniform_(-1, 1) * reach
    maps = torch.cat((torch.diag_embed(by[:, None].expand(-1, 2)), shift[:, :, None]), 2)  # (b, 2, 3)
    grid = F.affine_grid(maps, [count, channels, SAMPLES * height, SAMPLES * width], align_corners=False)
    zoomed = images.clone()
    zoomed[chosen] = F.avg_pool2d(F.grid_sample(images[chosen], grid, align_corners=False), SAMPLES)
    return zoomed


def _crop_flip(images: Tensor) -> Tensor:
    from kornia.augmentation import RandomCrop, RandomHorizontalFlip

    height, width = images.shape[2:]
    cropped: Tensor = RandomHorizontalFlip()(RandomCrop((height, width), padding=4)(images))  # (B, C, H, W)
    return cropped


def _mirrored(images: Tensor) -> Tensor:
    return torch.where(uniform(images, 0, 1, 1, 1, 1) < 0.5, images.flip(-1), images)


def _turned(images: Tensor) -> Tensor:
    places = _mapped(_affine(uniform(images, -0.5, 0.5, 5)), *images.shape[2:])  # (B, H, W, 2)
    turned: Tensor = F.grid_sample(images, places, padding_mode="border", align_corners=False)
    return turned


def _shaded(images: Tensor) -> Tensor:
    gamma, contrast = (uniform(images, -most, most, 1, 1, 1).exp() for most in (GAMMA, CONTRAST))
    return (images**gamma * contrast).clamp(max=1)


def _recoloured(images: Tensor) -> Tensor:
    count, channels = images.shape[:2]
    order = uniform(images, 0, 1, channels).argsort(1)  # (B, C)
    swapped = images[torch.arange(count, device=images.device)[:, None], order]
    inverted, chosen = (uniform(images, 0, 1, width, 1, 1) < 0.5 for width in (channels, 1))
    return torch.where(chosen, torch.where(inverted, 1 - swapped, swapped), images)


def _rolled(images: Tensor) -> Tensor:
    height, width = images.shape[2:]
    wrapped = F.pad(images, (0, width - 1, 0, height - 1), mode="circular")
    return _windows(wrapped, height, width)


def _moved(images: Tensor) -> Tensor:
    """Moves each image by whole pixels; black fills the rest."""
    height, width = images.shape[2:]
    up, left = height // MOVES, width // MOVES
    return _windows(F.pad(images, (left, left, up, up)), height, width)


def _windows(images: Tensor, height: int, width: int) -> Tensor:
    """Of each image a window of that size, anywhere in it: (B, C, height, width)."""
    count = len(images)
    rows, columns = (
        torch.arange(size, device=images.device) + torch.randint(side - size + 1, (count, 1), device=images.device)
        for size, side in zip((height, width), images.shape[2:], strict=True)
    )  # (B, height), (B, width)
    chosen = torch.arange(count, device=images.device)[:, None, None]
    return images.transpose(0, 1)[:, chosen, rows[:, :, None], columns[:, None]].transpose(0, 1)


def _erased(images: Tensor) -> Tensor:
    """Blackens a rectangle in ERASED_SHARE of the images. Its centre is anywhere, so its edge may be outside."""
    rows, columns = (_random_intervals(images, side) for side in images.shape[2:])  # (B, H), (B, W)
    rows &= uniform(images, 0, 1, 1) < ERASED_SHARE
    return images.masked_fill((rows[:, :, None] & columns[:, None])[:, None], 0)


def _random_intervals(images: Tensor, side: int) -> Tensor:
    """Marks a random interval of a line of pixels for every image: bool (B, side)."""
    centre, length = uniform(images, 0, side, 1), side * uniform(images, *ERASED, 1)
    return (torch.arange(side, device=images.device) + 0.5 - centre).abs() < length / 2


def _elastic(images: Tensor) -> Tensor:
    count, _, height, width = images.shape
    maps = _affine(uniform(images, -1, 1, 5))
    places = _mapped(maps, height, width) + _displacements(count, height, width).to(images)  # (B, H, W, 2)
    distorted: Tensor = F.grid_sample(images, places, align_corners=False)
    return distorted


def _mapped(maps: Tensor, height: int, width: int) -> Tensor:
    """Coordinate maps (B, 2, 3) -> places (B, H, W, 2) of all pixels: `affine_grid`, in a third of its time."""
    x, y = ((2 * torch.arange(side).to(maps) + 1) / side - 1 for side in (width, height))
    across = x[:, None] * maps[:, None, :, 0]  # (B, W, 2)
    down = y[:, None] * maps[:, None, :, 1] + maps[:, None, :, 2]  # (B, H, 2)
    return across[:, None] + down[:, :, None]


def _affine(draws: Tensor) -> Tensor:
    """Draws (B, 5) in [-1, 1] -> coordinate maps (B, 2, 3)."""
    turn, shear, zoom, right, down = (draws * draws.new_tensor([0.2, 0.15, 0.12, 0.15, 0.15])).unbind(1)
    cosine, sine, slant = turn.cos(), turn.sin(), shear.tan()
    across = torch.stack((cosine, cosine * slant - sine, right), 1)  # (B, 3)
    along = torch.stack((sine, sine * slant + cosine, down), 1)
    return torch.stack((across, along), 1) / (1 + zoom)[:, None, None]


def _displacements(count: int, height: int, width: int) -> Tensor:
    """Smooth displacements (B, H, W, 2) of up to ELASTIC_PIXELS, in units of half a side as in `grid_sample`."""
    noise = torch.randn(count, 2, height, width)
    rows, columns = (gaussians(side, torch.tensor([[ELASTIC_SIGMA]])) for side in (height, width))
    smooth = rows @ noise @ columns.T
    largest = smooth.flatten(1).abs().amax(dim=1, keepdim=True)  # (B, 1)
    reach = ELASTIC_PIXELS * torch.rand(count, 1)
    scale = reach / largest * torch.tensor([2 / width, 2 / height])  # (B, 2): across, down
    return (smooth * scale[:, :, None, None]).permute(0, 2, 3, 1)  # (B, H, W, 2)
