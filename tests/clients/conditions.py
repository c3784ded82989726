"""What people hand in: one digit's ink, laid on all kinds of paper, in all kinds of light, by all kinds of pens.

Each condition is a function (ink uint8 (224, 224) with 255 = ink, numpy Generator) -> picture, and stands in CONDITIONS
under its name. The inks come from three sources: strokes that the project renders, scikit-learn's digits, and MNIST's
test images. Run as a program this measures what preprocessing keeps of a network's accuracy:

    python tests/clients/conditions.py [--images N] [--source NAME]... [CONDITION]...
"""

import gzip
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter
from scipy import ndimage
from strokes import SIDE, draw_strokes

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # for the run as a program

SHEET = 400  # pixels a side of a common picture

Rng = np.random.Generator
Cover = np.ndarray  # float (h, w): how much of each pixel is ink, 0 to 1


# The parts that pictures are made of


def tight(ink: np.ndarray) -> np.ndarray:
    """Ink without the empty rows and columns around it."""
    rows, columns = np.flatnonzero((ink > 25).any(axis=1)), np.flatnonzero((ink > 25).any(axis=0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def place(ink: np.ndarray, rng: Rng, share: float, at: tuple[float, float] | None = None, side: int = SHEET) -> Cover:
    """Ink on an empty square sheet, its longer side this share of it.

    at: where in the room that is left, 0 to 1 from the left and from the top; by chance near the middle without it.
    """
    picture = Image.fromarray(tight(ink))
    scale = side * share / max(picture.size)
    picture = picture.resize([max(1, round(extent * scale)) for extent in picture.size], Image.Resampling.BICUBIC)
    x, y = rng.uniform(0.35, 0.65, 2) if at is None else at
    sheet = Image.new("L", (side, side))
    sheet.paste(picture, (round(x * (side - picture.width)), round(y * (side - picture.height))))
    return np.asarray(sheet, dtype=float) / 255


def middle(ink: np.ndarray, rng: Rng) -> Cover:
    """A digit that fills about half of the sheet."""
    return place(ink, rng, rng.uniform(0.4, 0.6))


def paint(cover: Cover, paper: np.ndarray | float, ink: np.ndarray | float, light: np.ndarray | float = 1.0):
    """Grey levels (h, w) of ink on paper; light is the share of it that falls on each pixel."""
    return (paper + cover * (ink - paper)) * light


def developed(levels: np.ndarray) -> Image.Image:
    """Grey levels (h, w) or colours (h, w, 3) as a picture of 8 bits."""
    return Image.fromarray(np.clip(np.rint(levels), 0, 255).astype(np.uint8))


def dark(rng: Rng) -> float:
    return rng.uniform(10, 70)


def white(rng: Rng) -> float:
    return rng.uniform(225, 255)


def ramp(side: int, rng: Rng) -> np.ndarray:
    """-1 to 1 across the sheet, in a direction by chance."""
    angle = rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    across = np.cos(angle) * x + np.sin(angle) * y
    return across / np.abs(across).max()


def shade(side: int, rng: Rng) -> np.ndarray:
    """The light beside a shadow with a soft edge, which lies somewhere across the sheet."""
    edge, softness = rng.uniform(-0.4, 0.4), rng.uniform(0.03, 0.12)
    return 1 - rng.uniform(0.25, 0.5) / (1 + np.exp(-(ramp(side, rng) - edge) / softness))


def clouds(side: int, rng: Rng, grain: float) -> np.ndarray:
    """Noise (side, side) with standard deviation 1, smooth over this many pixels."""
    noise = ndimage.gaussian_filter(rng.normal(size=(side, side)), grain, mode="wrap")
    return noise / noise.std()


def compressed(picture: Image.Image, quality: int) -> Image.Image:
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=quality)
    return Image.open(stream)


def lines(side: int, rng: Rng) -> np.ndarray:
    """Where printed lines run, bool (side, side)."""
    pitch, width, first = rng.integers(20, 45), rng.integers(1, 3), rng.integers(20)
    return np.broadcast_to((np.arange(side) + first)[:, None] % pitch < width, (side, side))


def skeleton(ink: np.ndarray) -> np.ndarray:
    """The middle lines of strokes, bool (h, w): thinning by Zhang and Suen (1984)."""
    shape = np.pad(ink, 1)
    while True:
        before = shape.sum()
        for step in (0, 1):
            # The neighbours in turn from the one above, clockwise.
            ring = [(-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1)]
            n = [np.roll(shape, (-dy, -dx), (0, 1)) for dy, dx in ring]
            count = sum(each.astype(int) for each in n)
            turns = sum((~a & b).astype(int) for a, b in zip(n, n[1:] + n[:1], strict=True))
            up, right, down, left = n[0], n[2], n[4], n[6]
            kept = (
                (up & right & down) | (right & down & left) if step == 0 else (up & right & left) | (up & down & left)
            )
            shape = shape & ~((count >= 2) & (count <= 6) & (turns == 1) & ~kept)
        if shape.sum() == before:
            return shape[1:-1, 1:-1]


def fine(ink: np.ndarray, rng: Rng) -> Cover:
    """The digit drawn again with a line of one or two pixels."""
    extent = round(SHEET * rng.uniform(0.4, 0.6))
    shape = Image.fromarray(tight(ink))
    scale = extent / max(shape.size)
    shape = shape.resize([max(1, round(side * scale)) for side in shape.size], Image.Resampling.BICUBIC)
    line = skeleton(ndimage.gaussian_filter(np.asarray(shape, dtype=float), 2) > 110)
    if rng.random() < 0.5:
        line = ndimage.binary_dilation(line, np.ones((2, 2)))
    cover = np.zeros((SHEET, SHEET))
    top, left = ((SHEET - side) // 2 for side in line.shape)
    cover[top : top + line.shape[0], left : left + line.shape[1]] = line
    return ndimage.gaussian_filter(cover, 0.4)


# The conditions


def plain(ink, rng):
    return developed(paint(middle(ink, rng), white(rng), dark(rng)))


def inverted(ink, rng):
    return developed(paint(middle(ink, rng), dark(rng), white(rng)))


def coloured(ink, rng):
    """Ink and paper of any two colours that differ by 80 or more in brightness."""
    while True:
        paper, pen = rng.uniform(0, 255, (2, 3))
        if abs((paper - pen) @ (0.299, 0.587, 0.114)) > 80:
            return developed(paint(middle(ink, rng)[..., None], paper, pen))


def equally_bright(ink, rng):
    """Red ink on green paper, and the like: colours that a grey picture can hardly tell apart."""
    while True:
        paper, pen = rng.uniform(0, 255, (2, 3))
        if abs((paper - pen) @ (0.299, 0.587, 0.114)) < 10 and np.linalg.norm(paper - pen) > 120:
            return developed(paint(middle(ink, rng)[..., None], paper, pen))


def transparent(ink, rng):
    """Ink of any colour on nothing."""
    cover = middle(ink, rng)
    pen = Image.new("RGB", (SHEET, SHEET), tuple(int(level) for level in rng.integers(0, 256, 3)))
    pen.putalpha(developed(255 * cover))
    return pen


def sixteen_bits(ink, rng):
    """Up to 4095 or to 65535, as scanners and cameras of 12 and 16 bits write."""
    levels = paint(middle(ink, rng), white(rng), dark(rng)) / 255
    return Image.fromarray(np.rint(levels * rng.choice([4095, 65535])).astype(np.uint16))


def small(ink, rng):
    """20 to 40 pixels high on a sheet of 1,000."""
    cover = place(ink, rng, rng.uniform(0.02, 0.04), rng.uniform(0.1, 0.9, 2), side=1000)
    return developed(paint(cover, white(rng), dark(rng)) + rng.normal(0, 3, cover.shape))


def in_a_corner(ink, rng):
    cover = place(ink, rng, rng.uniform(0.2, 0.4), rng.choice([0.03, 0.97], 2))
    return developed(paint(cover, white(rng), dark(rng)) + rng.normal(0, 3, cover.shape))


def at_the_border(ink, rng):
    """Ink that touches one side of the picture."""
    at = rng.permutation([rng.choice([0.0, 1.0]), rng.uniform(0.2, 0.8)])
    return developed(paint(place(ink, rng, rng.uniform(0.3, 0.6), at), white(rng), dark(rng)))


def cropped(ink, rng):
    """Cut out so closely that the ink touches all four sides."""
    return developed(paint(tight(ink) / 255, white(rng), dark(rng)))


def fine_pen(ink, rng):
    return developed(paint(fine(ink, rng), white(rng), dark(rng)) + rng.normal(0, 2, (SHEET, SHEET)))


def marker(ink, rng):
    """Strokes a quarter to a half wider, by a pixel in the field of MNIST."""
    wide = Image.fromarray(ink).filter(ImageFilter.MaxFilter(int(rng.choice([5, 7, 9]))))
    return plain(np.asarray(wide), rng)


def light_from_one_side(ink, rng):
    light = 1 - rng.uniform(0.2, 0.35) * (1 + ramp(SHEET, rng))
    return developed(paint(middle(ink, rng), white(rng), dark(rng), light) + rng.normal(0, 2, light.shape))


def vignette(ink, rng):
    """Brightest somewhere near the middle, and half as bright in the corners."""
    y, x = np.mgrid[-1 : 1 : SHEET * 1j, -1 : 1 : SHEET * 1j] - rng.uniform(-0.3, 0.3, (2, 1, 1))
    light = 1 - rng.uniform(0.15, 0.25) * (x**2 + y**2)
    return developed(paint(middle(ink, rng), white(rng), dark(rng), light) + rng.normal(0, 2, light.shape))


def shadow(ink, rng):
    light = shade(SHEET, rng)
    return developed(paint(middle(ink, rng), white(rng), dark(rng), light) + rng.normal(0, 2, light.shape))


def noise(ink, rng):
    return developed(paint(middle(ink, rng), white(rng), dark(rng)) + rng.normal(0, rng.uniform(8, 20), (SHEET, SHEET)))


def jpeg(ink, rng):
    return compressed(plain(ink, rng), quality=30)


def texture(ink, rng):
    """Paper with fibres and stains."""
    paper = white(rng) - 15 + 7 * clouds(SHEET, rng, 1.5) + 7 * clouds(SHEET, rng, 25)
    return developed(paint(middle(ink, rng), paper, dark(rng)))


def ruled(ink, rng):
    paper = np.where(lines(SHEET, rng), rng.uniform(170, 215), white(rng))
    return developed(ndimage.gaussian_filter(paint(middle(ink, rng), paper, dark(rng)), 0.6))


def squared(ink, rng):
    printed = lines(SHEET, rng)
    paper = np.where(printed | printed.T, rng.uniform(170, 215), white(rng))
    return developed(ndimage.gaussian_filter(paint(middle(ink, rng), paper, dark(rng)), 0.6))


def specks(ink, rng):
    """Dust and crumbs, as dark as the ink."""
    cover = middle(ink, rng)
    for x, y in rng.integers(8, SHEET - 8, (rng.integers(3, 10), 2)):
        cover[y : y + rng.integers(1, 6), x : x + rng.integers(1, 6)] = 1
    return developed(paint(cover, white(rng), dark(rng)))


def out_of_focus(ink, rng):
    return plain(ink, rng).filter(ImageFilter.GaussianBlur(rng.uniform(3, 6)))


def pencil(ink, rng):
    """Grey on rough paper, which takes up more in some places than in others."""
    cover = middle(ink, rng) * np.clip(0.85 + 0.15 * clouds(SHEET, rng, 1.0), 0, 1)
    paper = white(rng) + 3 * clouds(SHEET, rng, 1.0)
    return developed(paint(cover, paper, rng.uniform(140, 170)))


def photo(ink, rng):
    """All that comes together when a telephone is held over a sheet."""
    cover = place(ink, rng, rng.uniform(0.2, 0.4), rng.uniform(0.1, 0.9, 2), side=800)
    light = shade(800, rng) * (1 - rng.uniform(0.05, 0.2) * (1 + ramp(800, rng)))
    paper = white(rng) - 15 + 4 * clouds(800, rng, 2)
    levels = ndimage.gaussian_filter(paint(cover, paper, dark(rng) + 20, light), rng.uniform(0.5, 1.5))
    return compressed(developed(levels + rng.normal(0, rng.uniform(3, 8), levels.shape)), quality=60)


Condition = Callable[[np.ndarray, Rng], Image.Image]
CONDITIONS: dict[str, Condition] = {
    condition.__name__.replace("_", " "): condition
    for condition in (
        plain, inverted, coloured, equally_bright, transparent, sixteen_bits,
        small, in_a_corner, at_the_border, cropped, fine_pen, marker,
        light_from_one_side, vignette, shadow, noise, jpeg, texture, ruled, squared, specks,
        out_of_focus, pencil, photo,
    )
}  # fmt: skip


# The sources


def strokes(count: int) -> tuple[np.ndarray, np.ndarray]:
    return draw_strokes(count, seed=1)


def scikit_learn(count: int) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's digits of 8x8 pixels, enlarged."""
    from sklearn.datasets import load_digits

    bundled = load_digits()
    images = (bundled.images[:count] * (255 / 16)).astype(np.uint8)
    box = SIDE * 20 // 28
    edge = (SIDE - box) // 2
    inks = [Image.fromarray(image).resize((box, box), Image.Resampling.BICUBIC) for image in images]
    return np.stack([np.pad(np.asarray(ink), edge) for ink in inks]), bundled.target[:count]


def mnist_images(folder: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` test images from all over the file and their labels: uint8 (n, 28, 28), int (n,)."""
    content = {}
    for name, header in (("t10k-images-idx3-ubyte", 16), ("t10k-labels-idx1-ubyte", 8)):
        plain_file = folder / name
        with plain_file.open("rb") if plain_file.exists() else gzip.open(f"{plain_file}.gz") as file:
            content[header] = np.frombuffer(file.read(), np.uint8, offset=header)
    chosen = np.linspace(0, 9999, count).astype(int)
    return content[16].reshape(-1, 28, 28)[chosen], content[8][chosen].astype(int)


def enlarged(images: np.ndarray) -> np.ndarray:
    """uint8 (n, 28, 28) -> ink uint8 (n, 224, 224)."""
    return np.stack([Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC) for image in images])


def pictures(condition: str, inks: np.ndarray, seed: int = 0) -> list[Image.Image]:
    """Every ink under this condition; the same pictures at every call, whatever other conditions there are."""
    rng = np.random.default_rng([seed, *condition.encode()])
    return [CONDITIONS[condition](ink, rng) for ink in inks]


# The measurement


def seen(pictures: list[Image.Image]) -> np.ndarray:
    """What preprocessing makes of each, uint8 (n, 1, 28, 28); nothing but background where it finds no digit."""
    from clients.preprocess import InvalidImage, to_model_input

    images = np.zeros((len(pictures), 1, 28, 28), dtype=np.uint8)
    for image, picture in zip(images, pictures, strict=True):
        try:
            image[:] = to_model_input(picture)
        except InvalidImage:
            continue
    return images


class Judge:
    """The shipped network, which was trained on MNIST alone."""

    def __init__(self) -> None:
        from models.checkpoint import load

        self._model = load(ROOT / "models/pretrained/vitbn.safetensors").model

    def right(self, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Which of uint8 (n, 1, 28, 28) it gets right, bool (n,); an image without ink it does not."""
        import torch

        from models.config import INPUT_SCALE

        with torch.inference_mode():
            logits = self._model.eval()(torch.tensor(images) * INPUT_SCALE)
        return (logits.argmax(1).numpy() == labels) & images.any(axis=(1, 2, 3))


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description="Accuracy in per cent, by condition and source of the ink.")
    parser.add_argument("conditions", nargs="*", metavar="CONDITION", help="default: all")
    parser.add_argument("--images", type=int, default=200, metavar="N")
    parser.add_argument("--source", action="append", choices=["mnist", "strokes", "scikit-learn"])
    options = parser.parse_args()
    judge = Judge()
    sources = {}
    raw = {}
    for name in options.source or ["mnist", "strokes", "scikit-learn"]:
        if name == "mnist":
            folder = Path(os.environ.get("MNIST_DIR", ROOT.parent / "shared/data/MNIST/raw"))
            if not folder.exists():
                print(f"MNIST is not at {folder}")
                continue
            images, labels = mnist_images(folder, options.images)
            raw[name] = 100 * judge.right(images[:, None], labels).mean()
            sources[name] = enlarged(images), labels
        else:
            sources[name] = strokes(options.images) if name == "strokes" else scikit_learn(options.images)
    print(f"{'condition':20}", *(f"{name:>13}" for name in sources))
    print(f"{'raw, as in the file':20}", *(f"{raw[name]:13.2f}" if name in raw else " " * 13 for name in sources))
    for condition in options.conditions or CONDITIONS:
        shares = [
            100 * judge.right(seen(pictures(condition, inks)), labels).mean() for inks, labels in sources.values()
        ]
        print(f"{condition:20}", *(f"{share:13.2f}" for share in shares), flush=True)


if __name__ == "__main__":
    main()
