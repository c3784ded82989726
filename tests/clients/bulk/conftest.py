import numpy as np
import pytest
from bulk_inputs import write_all, write_network


@pytest.fixture(scope="session")
def digits(digit: np.ndarray) -> np.ndarray:
    """uint8 (40, 28, 28); preparation moves each by at most a pixel."""
    shades = np.linspace(0.6, 1, 40)[:, None, None]
    return (digit * shades).astype(np.uint8)


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory):
    return write_network(tmp_path_factory.mktemp("network") / "linear.onnx", preprocessing="photo")


@pytest.fixture(scope="session")
def network_of_ink(tmp_path_factory: pytest.TempPathFactory):
    return write_network(tmp_path_factory.mktemp("network") / "ink.onnx")


@pytest.fixture(scope="session")
def forms(tmp_path_factory: pytest.TempPathFactory, digits: np.ndarray):
    return write_all(tmp_path_factory.mktemp("forms") / "inputs", digits)
