"""What several folders of tests share: data that may be missing, a model trained once, a server started once."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A shell script starts what it sends to the background with SIGINT ignored, and children inherit that; some tests
# interrupt theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _there(path: Path, what: str) -> Path:
    """Skips, with the reason, where `path` is not on this machine; under CI, where it has to be, fails."""
    if not path.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{what} is not at {path}")
    return path


@pytest.fixture(scope="session")
def mnist_dir() -> Path:
    """The folder with the four idx files of MNIST."""
    return _there(Path(os.environ.get("MNIST_DIR", ROOT.parent / "shared/data/MNIST/raw")), "MNIST")


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    """The folder with the published checkpoint and its logits."""
    return _there(ROOT.parent / "shared/reference", "the published checkpoint")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViTBN of depth 2, trained on scikit-learn's digits to over 95 %."""
    from models.config import ModelConfig
    from models.data import load_digits
    from models.training import TrainingOptions, train

    path = tmp_path_factory.mktemp("checkpoints") / "vitbn.safetensors"
    options = TrainingOptions(epochs=12, batch_size=100, lr=0.001, seed=0, device="cpu")
    *_, last = train(ModelConfig(depth=2), load_digits(), options, path, False, lambda images, loss: None)
    assert last.test_accuracy > 0.95
    return path


@pytest.fixture(scope="session")
def repository(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with that network, folded, as version 1 of `vitbn`."""
    from export.graph import export
    from export.publish import publish
    from export.rewrites.pipeline import FUSE
    from models.checkpoint import load

    path = tmp_path_factory.mktemp("repository with a space")
    publish(path, "vitbn", export(load(trained), FUSE).artifact)
    return path


@pytest.fixture(scope="session")
def live_server(repository: Path) -> Iterator[object]:
    """The real tritonserver on that repository; has `http_url` and `grpc_url`."""
    from serving.running import running_server

    with running_server(repository) as server:
        yield server
