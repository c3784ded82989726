import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from idx_files import write_idx

if TYPE_CHECKING:
    from models.data import Dataset


@pytest.fixture(scope="session")
def digits() -> "Dataset":
    from models.data import load_digits

    return load_digits()


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


class Mirror(BaseHTTPRequestHandler):
    def __init__(self, contents: dict[str, bytes], requests: list[str], *arguments: object) -> None:
        self.contents, self.requests = contents, requests
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self.requests.append(self.path)
        self.send_response(200 if self.path in self.contents else 404)
        content = self.contents.get(self.path, b"")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[[dict[str, bytes]], tuple[str, list[str]]]]:
    """Mirrors path -> content; returns base URL and growing list of requests."""
    with ExitStack() as running:

        def start(contents: dict[str, bytes]) -> tuple[str, list[str]]:
            requests: list[str] = []
            http = running.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), partial(Mirror, contents, requests)))
            thread = threading.Thread(target=http.serve_forever, args=(0.01,))
            thread.start()
            running.callback(thread.join)
            running.callback(http.shutdown)
            return f"http://127.0.0.1:{http.server_port}", requests

        yield start
