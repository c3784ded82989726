import numpy as np
import pytest
from PIL import Image

from models.data import load_dataset
from pictures.conditions import CONDITIONS, pictures
from pictures.judge import right, seen
from pictures.strokes import SIDE, draw_strokes

pytestmark = pytest.mark.slow

IMAGES = 4  # per condition
MNIST_IMAGES = 12  # per condition
SLOW_S = 1200  # on busy cores; half a minute on free cores
MOST_LOST = 1.0  # percentage points


@pytest.fixture(scope="module")
def inks():
    return draw_strokes(IMAGES, seed=1)


def enlarged(images):
    """uint8 (n, 28, 28) -> ink uint8 (n, 224, 224)."""
    large = (Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC) for image in images)
    return np.stack([np.asarray(image) for image in large])


@pytest.fixture(scope="module")
def on_backgrounds(mnist_dir):
    """Right answers per condition: on the background, and as in the file."""
    data = load_dataset("mnist", mnist_dir)
    chosen = np.linspace(0, len(data.test_labels) - 1, MNIST_IMAGES * len(CONDITIONS)).astype(int)
    images, labels = data.test_images[chosen, 0], data.test_labels[chosen]
    both = {}
    for start, condition in enumerate(CONDITIONS):
        part, truth = images[start :: len(CONDITIONS)], labels[start :: len(CONDITIONS)]
        both[condition] = right(seen(pictures(condition, enlarged(part))), truth), right(part[:, None], truth)
    return both


@pytest.mark.parametrize("condition", CONDITIONS)
def test_drawn_digits_are_read_in_each_condition(inks, condition):
    images, labels = inks
    assert right(seen(pictures(condition, images)), labels).all()


@pytest.mark.timeout(SLOW_S)
def test_mnist_on_backgrounds_loses_at_most_a_point_and_no_condition_much(on_backgrounds):
    """Chance may cost one image of 12."""
    kept, raw = (np.concatenate(part) for part in zip(*on_backgrounds.values(), strict=True))
    assert len(raw) >= 250
    assert 100 * raw.mean() > 98.5, "or nothing could be lost"
    assert 100 * (raw.mean() - kept.mean()) <= MOST_LOST
    lost = {condition: int(raw.sum() - kept.sum()) for condition, (kept, raw) in on_backgrounds.items()}
    assert {condition: count for condition, count in lost.items() if count > 1} == {}


def test_mirrored_digits_lower_the_measured_accuracy(inks):
    images, labels = inks
    assert right(seen(pictures("plain", images[:, :, ::-1])), labels).mean() < 0.75
