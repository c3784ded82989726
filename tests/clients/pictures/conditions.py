"""One digit's ink under many conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageFilter
from scipy import ndimage

from pictures.parts import (
    SHEET,
    Array,
    Ink,
    Rng,
    clouds,
    compressed,
    dark,
    developed,
    fine,
    lines,
    middle,
    paint,
    place,
    ramp,
    shade,
    tight,
    white,
)


def plain(ink: Ink, rng: Rng) -> Image.Image:
    return developed(paint(middle(ink, rng), white(rng), dark(rng)))


def inverted(ink: Ink, rng: Rng) -> Image.Image:
    return developed(paint(middle(ink, rng), dark(rng), white(rng)))


def coloured(ink: Ink, rng: Rng) -> Image.Image:
    while True:
        paper, pen = rng.uniform(0, 255, (2, 3))
        if abs((paper - pen) @ (0.299, 0.587, 0.114)) > 80:
            return developed(paint(middle(ink, rng)[..., None], paper, pen))


def equally_bright(ink: Ink, rng: Rng) -> Image.Image:
    while True:
        paper, pen = rng.uniform(0, 255, (2, 3))
        if abs((paper - pen) @ (0.299, 0.587, 0.114)) < 10 and np.linalg.norm(paper - pen) > 120:
            return developed(paint(middle(ink, rng)[..., None], paper, pen))


def transparent(ink: Ink, rng: Rng) -> Image.Image:
    cover = middle(ink, rng)
    pen = Image.new("RGB", (SHEET, SHEET), tuple(int(level) for level in rng.integers(0, 256, 3)))
    pen.putalpha(developed(255 * cover))
    return pen


def sixteen_bits(ink: Ink, rng: Rng) -> Image.Image:
    """As 12- and 16-bit scanners and cameras write."""
    levels = paint(middle(ink, rng), white(rng), dark(rng)) / 255
    return Image.fromarray(np.rint(levels * rng.choice([4095, 65535])).astype(np.uint16))


def small(ink: Ink, rng: Rng) -> Image.Image:
    cover = place(ink, rng, rng.uniform(0.02, 0.04), rng.uniform(0.1, 0.9, 2), side=1000)
    return developed(paint(cover, white(rng), dark(rng)) + rng.normal(0, 3, cover.shape))


def in_a_corner(ink: Ink, rng: Rng) -> Image.Image:
    cover = place(ink, rng, rng.uniform(0.2, 0.4), rng.choice([0.03, 0.97], 2))
    return developed(paint(cover, white(rng), dark(rng)) + rng.normal(0, 3, cover.shape))


def at_the_border(ink: Ink, rng: Rng) -> Image.Image:
    at = rng.permutation([rng.choice([0.0, 1.0]), rng.uniform(0.2, 0.8)])
    return developed(paint(place(ink, rng, rng.uniform(0.3, 0.6), at), white(rng), dark(rng)))


def cropped(ink: Ink, rng: Rng) -> Image.Image:
    return developed(paint(tight(ink) / 255, white(rng), dark(rng)))


def fine_pen(ink: Ink, rng: Rng) -> Image.Image:
    return developed(paint(fine(ink, rng), white(rng), dark(rng)) + rng.normal(0, 2, (SHEET, SHEET)))


def marker(ink: Ink, rng: Rng) -> Image.Image:
    """Strokes wider by 0.5 to 1 pixel in the field of MNIST."""
    wide = Image.fromarray(ink).filter(ImageFilter.MaxFilter(int(rng.choice([5, 7, 9]))))
    return plain(np.asarray(wide), rng)


def light_from_one_side(ink: Ink, rng: Rng) -> Image.Image:
    light = 1 - rng.uniform(0.2, 0.35) * (1 + ramp(SHEET, rng))
    return developed(paint(middle(ink, rng), white(rng), dark(rng), light) + rng.normal(0, 2, light.shape))


def vignette(ink: Ink, rng: Rng) -> Image.Image:
    y, x = np.mgrid[-1 : 1 : SHEET * 1j, -1 : 1 : SHEET * 1j] - rng.uniform(-0.3, 0.3, (2, 1, 1))
    light = 1 - rng.uniform(0.15, 0.25) * (x**2 + y**2)
    return developed(paint(middle(ink, rng), white(rng), dark(rng), light) + rng.normal(0, 2, light.shape))


def shadow(ink: Ink, rng: Rng) -> Image.Image:
    light = shade(SHEET, rng)
    return developed(paint(middle(ink, rng), white(rng), dark(rng), light) + rng.normal(0, 2, light.shape))


def noise(ink: Ink, rng: Rng) -> Image.Image:
    return developed(paint(middle(ink, rng), white(rng), dark(rng)) + rng.normal(0, rng.uniform(8, 20), (SHEET, SHEET)))


def jpeg(ink: Ink, rng: Rng) -> Image.Image:
    return compressed(plain(ink, rng), quality=30)


def texture(ink: Ink, rng: Rng) -> Image.Image:
    paper = white(rng) - 15 + 7 * clouds(SHEET, rng, 1.5) + 7 * clouds(SHEET, rng, 25)
    return developed(paint(middle(ink, rng), paper, dark(rng)))


def ruled(ink: Ink, rng: Rng) -> Image.Image:
    paper = np.where(lines(SHEET, rng), rng.uniform(170, 215), white(rng))
    return developed(ndimage.gaussian_filter(paint(middle(ink, rng), paper, dark(rng)), 0.6))


def squared(ink: Ink, rng: Rng) -> Image.Image:
    printed = lines(SHEET, rng)
    paper = np.where(printed | printed.T, rng.uniform(170, 215), white(rng))
    return developed(ndimage.gaussian_filter(paint(middle(ink, rng), paper, dark(rng)), 0.6))


def specks(ink: Ink, rng: Rng) -> Image.Image:
    cover = middle(ink, rng)
    for x, y in rng.integers(8, SHEET - 8, (rng.integers(3, 10), 2)):
        cover[y : y + rng.integers(1, 6), x : x + rng.integers(1, 6)] = 1
    return developed(paint(cover, white(rng), dark(rng)))


def out_of_focus(ink: Ink, rng: Rng) -> Image.Image:
    return plain(ink, rng).filter(ImageFilter.GaussianBlur(rng.uniform(3, 6)))


def pencil(ink: Ink, rng: Rng) -> Image.Image:
    """Grey on rough paper that takes ink unevenly."""
    cover = middle(ink, rng) * np.clip(0.85 + 0.15 * clouds(SHEET, rng, 1.0), 0, 1)
    paper = white(rng) + 3 * clouds(SHEET, rng, 1.0)
    return developed(paint(cover, paper, rng.uniform(140, 170)))


def photo(ink: Ink, rng: Rng) -> Image.Image:
    cover = place(ink, rng, rng.uniform(0.2, 0.4), rng.uniform(0.1, 0.9, 2), side=800)
    light = shade(800, rng) * (1 - rng.uniform(0.05, 0.2) * (1 + ramp(800, rng)))
    paper = white(rng) - 15 + 4 * clouds(800, rng, 2)
    levels = ndimage.gaussian_filter(paint(cover, paper, dark(rng) + 20, light), rng.uniform(0.5, 1.5))
    return compressed(developed(levels + rng.normal(0, rng.uniform(3, 8), levels.shape)), quality=60)


Condition = Callable[[Ink, Rng], Image.Image]
CONDITIONS: dict[str, Condition] = {
    condition.__name__.replace("_", " "): condition
    for condition in (
        plain, inverted, coloured, equally_bright, transparent, sixteen_bits,
        small, in_a_corner, at_the_border, cropped, fine_pen, marker,
        light_from_one_side, vignette, shadow, noise, jpeg, texture, ruled, squared, specks,
        out_of_focus, pencil, photo,
    )
}  # fmt: skip


def pictures(condition: str, inks: Sequence[Ink] | Array, seed: int = 0) -> list[Image.Image]:
    """The same pictures at every call, independent of other conditions."""
    rng = np.random.default_rng([seed, *condition.encode()])
    return [CONDITIONS[condition](ink, rng) for ink in inks]
