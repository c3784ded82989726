from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from idx_files import write_idx
from raw_server import answering, reply


@pytest.fixture
def interrupt() -> Callable[[int, float], None]:
    """In the third batch."""
    batches = []

    def interrupt(images: int, loss: float) -> None:
        batches.append(loss)
        if len(batches) == 3:
            raise KeyboardInterrupt

    return interrupt


@pytest.fixture(scope="session")
def small_mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MNIST's files with 120 training and 40 test images of scikit-learn's digits."""
    from models.data import load_digits
    from models.data.mnist import MNIST_PARTS

    digits, folder = load_digits(), tmp_path_factory.mktemp("small mnist")
    arrays = {
        "train images": digits.train_images[:120, 0],
        "train labels": digits.train_labels[:120],
        "test images": digits.test_images[:40, 0],
        "test labels": digits.test_labels[:40],
    }
    for part, array in arrays.items():
        write_idx(folder / MNIST_PARTS[part].removesuffix(".gz"), array)
    return folder


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    import random_networks
    from saved_networks import TINY

    return random_networks.saved(tmp_path / "tiny.safetensors", TINY, {"test_accuracy": 0.5})


@pytest.fixture
def serve() -> Iterator[Callable[[dict[str, bytes]], tuple[str, list[str]]]]:
    """Mirrors path -> content; returns base URL and growing list of requests."""
    with ExitStack() as running:

        def start(contents: dict[str, bytes]) -> tuple[str, list[str]]:
            requests: list[str] = []

            def answer(path: str) -> list[bytes]:
                requests.append(path)
                return [reply(contents[path]) if path in contents else reply(b"", "404 Not Found")]

            return f"http://{running.enter_context(answering(answer))}", requests

        yield start
