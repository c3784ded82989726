import numpy as np
import pytest

from models.data import DataError, load_dataset
from pictures import inks as sources
from pictures.conditions import CONDITIONS, pictures
from pictures.judge import right, seen

pytestmark = pytest.mark.slow

IMAGES = 4  # per source
MNIST_IMAGES = 12  # per condition
SLOW_S = 1200  # on busy cores; half a minute on free cores
MOST_LOST = 1.0  # percentage points

# Per cent of IMAGES, slightly below the share measured on 60. The fine pen follows the skeleton of scikit-learn's 8x8
# pixels, which often shows no digit.
LEAST = {"strokes": 95, "scikit-learn": 70}
LEAST_WITH_A_FINE_PEN = {"strokes": 95, "scikit-learn": 50}


@pytest.fixture(scope="module")
def inks():
    return {"strokes": sources.strokes(IMAGES), "scikit-learn": sources.scikit_learn(IMAGES)}


@pytest.fixture(scope="module")
def on_backgrounds(mnist_dir):
    """Right answers per condition: on the background, and as in the file."""
    images, labels = sources.test_images(load_dataset("mnist", mnist_dir), MNIST_IMAGES * len(CONDITIONS))
    both = {}
    for start, condition in enumerate(CONDITIONS):
        part, truth = images[start :: len(CONDITIONS)], labels[start :: len(CONDITIONS)]
        prepared = seen(pictures(condition, sources.enlarged(part)))
        both[condition] = right(prepared, truth), right(part[:, None], truth)
    return both


@pytest.mark.parametrize("source", LEAST)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_accuracy_of_each_condition(inks, condition, source):
    images, labels = inks[source]
    answers = right(seen(pictures(condition, images)), labels)
    least = LEAST_WITH_A_FINE_PEN if condition == "fine pen" else LEAST
    assert 100 * answers.mean() >= least[source]


@pytest.mark.timeout(SLOW_S)
def test_mnist_on_backgrounds_loses_at_most_a_point(on_backgrounds):
    kept, raw = (np.concatenate(part) for part in zip(*on_backgrounds.values(), strict=True))
    assert len(raw) >= 250
    assert 100 * raw.mean() > 98.5, "or nothing could be lost"
    assert 100 * (raw.mean() - kept.mean()) <= MOST_LOST


@pytest.mark.timeout(SLOW_S)
def test_no_condition_alone_loses_much(on_backgrounds):
    """Chance may cost one image of 12."""
    lost = {condition: int(raw.sum() - kept.sum()) for condition, (kept, raw) in on_backgrounds.items()}
    assert {condition: count for condition, count in lost.items() if count > 1} == {}


def test_the_same_pictures_at_every_call(inks):
    images, _ = inks["strokes"]
    for condition in ("plain", "photo"):
        first, second = (pictures(condition, images[:1])[0] for _ in range(2))
        assert np.array_equal(np.asarray(first), np.asarray(second))


def test_mirrored_digits_lower_the_measured_accuracy(inks):
    images, labels = inks["strokes"]
    mirrored = seen(pictures("plain", images[:, :, ::-1]))
    assert 100 * right(mirrored, labels).mean() < LEAST["strokes"] - 20


def test_more_images_than_a_source_has():
    with pytest.raises(DataError, match="scikit-learn: expected 1798 images or more, found 1797"):
        sources.scikit_learn(1798)
    with pytest.raises(DataError, match="digits: expected 500 images or more, found 359"):
        sources.test_images(load_dataset("digits", None), 500)
