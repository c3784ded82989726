import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIDE = 120  # pixels


def noise(count: int = 200, seed: int = 0) -> list[Image.Image]:
    rng = np.random.default_rng(seed)
    pictures = []
    for number in range(count):
        levels = rng.normal(128, 60, (SIDE, SIDE))
        if number % 3 == 1:
            levels = np.where(rng.random((SIDE, SIDE)) < rng.uniform(0.02, 0.5), 20.0, 240.0)
        picture = Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8))
        if number % 3 == 2:
            blurred = np.asarray(picture.filter(ImageFilter.GaussianBlur(rng.uniform(3, 9))), dtype=float)
            picture = Image.fromarray(np.where(blurred > np.quantile(blurred, 0.85), 20, 240).astype(np.uint8))
        pictures.append(picture)
    return pictures


def scribbles(count: int = 200, seed: int = 0) -> list[Image.Image]:
    rng = np.random.default_rng(seed)
    pictures = []
    for _ in range(count):
        large = 4 * SIDE
        picture = Image.new("L", (large, large), 250)
        points = rng.uniform(0.15, 0.85, (rng.integers(5, 12), 2)) * large
        t = np.linspace(0, len(points) - 1, 400)
        smooth = np.stack([np.interp(t, np.arange(len(points)), points[:, axis]) for axis in (0, 1)], axis=1)
        window = np.ones(41) / 41
        path = np.stack([np.convolve(smooth[:, axis], window, mode="valid") for axis in (0, 1)], axis=1)
        ImageDraw.Draw(picture).line([tuple(point) for point in path.tolist()], fill=20, width=28, joint="curve")
        pictures.append(picture.resize((SIDE, SIDE), Image.Resampling.BOX))
    return pictures


def rows_of_digits(
    images: np.ndarray, length: int = 3, count: int = 200, seed: int = 0
) -> list[tuple[Image.Image, list[int]]]:
    """Rows of images (n, 28, 28), ink 255, and the images' indices."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        chosen = rng.integers(0, len(images), length)
        sheet = np.zeros((60, 40 * length + 20), dtype=np.uint8)
        for place, number in enumerate(chosen):
            left, top = 12 + 40 * place, 16 + rng.integers(-6, 7)
            sheet[top : top + 28, left : left + 28] = images[number]
        large = Image.fromarray(255 - sheet).resize((4 * sheet.shape[1], 4 * sheet.shape[0]), Image.Resampling.BICUBIC)
        rows.append((large, chosen.tolist()))
    return rows
