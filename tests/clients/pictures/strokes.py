"""Random digits as a pen draws them, in part in the forms of the training's drawn digits."""

from typing import Any

import numpy as np
from PIL import Image

from models.data.drawn_digits import FORMS as SHARED
from models.data.drawn_digits import draw
from pictures.parts import Array

SIDE = 224  # pixels; eight times the field of MNIST
OVERSAMPLING = 2

FORMS: dict[int, list[Any]] = {
    0: [
        [[(0.30, 0), (0.06, 0.22), (0.0, 0.55), (0.12, 0.9), (0.35, 1), (0.58, 0.8), (0.64, 0.42),
         (0.52, 0.08), (0.3, 0)]],
        SHARED[0][1],
    ],
    1: [
        [((0.1, 0), (0.1, 1))],
        [((0, 0.2), (0.25, 0), (0.25, 1))],
        [((0.3, 0), (0, 1))],
    ],
    2: [
        [[(0.02, 0.25), (0.15, 0.05), (0.38, 0), (0.58, 0.16), (0.52, 0.42), (0.25, 0.75),
         (0, 1)], ((0, 1), (0.65, 0.98))],
        [
            [(0, 0.2), (0.2, 0), (0.45, 0.1), (0.45, 0.4), (0.2, 0.8), (0.03, 0.97), (0.02, 0.83), (0.18, 0.82),
             (0.4, 0.97), (0.66, 0.95)]
        ],
    ],
    3: SHARED[3],
    4: SHARED[4][:3],
    5: SHARED[5],
    6: SHARED[6][:2],
    7: [
        [((0, 0.02), (0.6, 0), (0.2, 1))],
        [((0, 0.03), (0.58, 0.02)), [(0.58, 0.02), (0.38, 0.35), (0.28, 0.7), (0.26, 1)]],
        [((0, 0.02), (0.6, 0), (0.2, 1)), ((0.12, 0.5), (0.55, 0.47))],
    ],
    8: SHARED[8],
    9: SHARED[9][:2],
}  # fmt: skip


def draw_strokes(count: int, seed: int = 0) -> tuple[Array, Array]:
    """Ink uint8 (count, 224, 224), 255 = ink, and labels int64 (count,), all digits equally often."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    return np.stack([_draw(FORMS[label][rng.integers(len(FORMS[label]))], rng) for label in labels]), labels


def _draw(form: list[Any], rng: np.random.Generator) -> Array:
    large = SIDE * OVERSAMPLING
    height = large * 20 // 28
    canvas = Image.new("L", (large, large))
    canvas.paste(Image.fromarray(draw(form, rng, height)), ((large - height) // 2,) * 2)
    return np.asarray(canvas.resize((SIDE, SIDE), Image.Resampling.BOX))
