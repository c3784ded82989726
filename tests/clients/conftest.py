import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="session")
def digit() -> np.ndarray:
    """A 2, uint8 (28, 28)."""
    from clients.preprocess import to_model_input

    y, x = np.mgrid[:56, :56]
    ink = np.zeros((56, 56))
    ink[np.abs(np.hypot(y - 20, x - 28) - 11) < 2.5] = 255
    ink[(y > 20) & (x < 28)] = 0
    ink[(np.abs(y + 1.2 * x - 67) < 4) & (y > 20) & (y < 46)] = 255
    ink[(np.abs(y - 46) < 3) & (x > 14) & (x < 44)] = 255
    return to_model_input(Image.fromarray(ink.astype(np.uint8)))[0]


@pytest.fixture(scope="session")
def mnist(mnist_dir) -> np.ndarray:
    from models.data import load_idx_part

    return load_idx_part("mnist", mnist_dir, "test")[0][:300, 0]
