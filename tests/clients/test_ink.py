import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage

from clients.images.connected_components import label
from clients.preprocess import to_model_input

CLOSE = 10.0  # mean grey levels of 255


def sheet(digit):
    cover = np.zeros((400, 400))
    cover[88:312, 88:312] = np.asarray(Image.fromarray(digit).resize((224, 224), Image.Resampling.BICUBIC)) / 255
    return 240 - 200 * cover


def difference(levels, digit):
    picture = Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8))
    return np.abs(to_model_input(picture)[0].astype(int) - digit).mean()


@settings(deadline=1000)
@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 1), st.integers(0, 1000))
def test_label_finds_the_parts_that_scipy_finds(height, width, share, seed):
    mask = np.random.default_rng(seed).random((height, width)) < share
    expected, count = ndimage.label(mask, np.ones((3, 3)))
    found, found_count = label(mask)
    assert found_count == count
    assert len(np.unique(np.stack([found.ravel(), expected.ravel()]), axis=1).T) == len(np.unique(expected))
    assert np.array_equal(found > 0, mask)


def test_a_hard_shadow_is_not_ink_and_does_not_weaken_ink(digit):
    light = np.where(np.add.outer(np.arange(400), 3 * np.arange(400)) < 820, 1.0, 0.5)  # across the digit
    assert difference(light * sheet(digit), digit) < 1.5 * CLOSE
    shaded = to_model_input(Image.fromarray((light * sheet(digit)).astype(np.uint8)))[0]
    parts = [shaded[:14].max(), shaded[14:].max()]
    assert min(parts) > 0.8 * max(parts)
