import gc
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from made_once import make_once

if TYPE_CHECKING:
    from models.data import Dataset

ROOT = Path(__file__).parents[1]

# A shell's background jobs and their children ignore SIGINT; some tests interrupt children.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch and ONNX Runtime are imported. On busy cores more threads take ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

settings.register_profile("quick", max_examples=40, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile("quick")

# Longest first, so that a run's processes end together.
LONG = (
    *("test_faults.py", "test_readme.py", "test_pack.py", "test_pretrained.py"),
    *("test_onnx_operators.py", "test_tensorrt_graph.py", "test_decoders.py"),
    *("test_operate_live.py", "test_tensorrt_on_a_stub.py", "test_throughput.py", "test_supervisor.py"),
    *("test_fleet.py", "test_random_graphs.py", "test_web_page.py", "test_latency.py"),
    *("test_web_access.py", "test_search.py", "test_outage.py", "test_compiled_networks.py"),
    *("test_image_corruptions.py", "test_serve_foreign.py", "test_tune.py", "test_to_onnx.py", "test_photos.py"),
    *("test_unloading.py", "test_study.py", "test_accuracy.py", "test_train_command.py", "test_training.py"),
    *("test_rewrites_benchmark.py", "test_probe.py", "test_read_rows.py", "test_end_to_end.py"),
    *("test_study_runs.py", "test_version_selection.py"),
)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "trained" in item.fixturenames:  # or its repository, or its server
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


def pytest_collection_finish() -> None:
    """Later collections skip what lives now, modules and tests, and are rarer: they took an eighth of an export."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def _there(path: Path, what: str) -> Path:
    if not path.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{what} is not at {path}")
    return path


@pytest.fixture(scope="session", autouse=True)
def _quick_exports(shared_dir: Path) -> None:
    if "torch" in sys.modules:  # else no test of this run has it
        import exports_once

        exports_once.install(shared_dir / "exports")


@pytest.fixture(scope="session", autouse=True)
def _quick_drawings(made_once: Callable[[str, Callable[[Path], object]], Path]) -> None:
    """Every training that holds pictures out ends with the same 2,000 drawings, two seconds' work."""
    if "torch" not in sys.modules:
        return
    from models.data import outlier_exposure

    def once(draw: Callable[..., object]) -> Callable[..., object]:
        def drawn(count: int, **others: object) -> object:
            if others:
                return draw(count, **others)
            path = made_once(f"{draw.__name__}/{count}", lambda path: path.write_bytes(pickle.dumps(draw(count))))
            return pickle.loads(path.read_bytes())

        return drawn

    outlier_exposure.not_digits, outlier_exposure.drawn = (
        once(outlier_exposure.not_digits),
        once(outlier_exposure.drawn),
    )


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """ONNX Runtime's threads wait busily for one another."""
    if "export.compare_logits" in sys.modules:
        sys.modules["export.compare_logits"].onnx_classifier.__defaults__ = (1,)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """A benchmark leaves a thread for each core to the next test."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def processor_time_s() -> Callable[..., float]:
    def run(command: list[str], code: int = 0) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert subprocess.run(command, capture_output=True, timeout=60).returncode == code
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    return run


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1 and its key, PEM."""
    _there(Path(shutil.which("openssl") or "/usr/bin/openssl"), "openssl")
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "certificate.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "certificate.pem", folder / "key.pem"


@pytest.fixture(scope="session")
def digits() -> "Dataset":
    from models.data import load_digits

    return load_digits()


@pytest.fixture(scope="session")
def mnist_dir() -> Path:
    return _there(
        Path(os.environ.get("MNIST_DIR", ROOT.parent / "shared/data/MNIST/raw")),
        "MNIST (its idx files, in the folder MNIST_DIR)",
    )


@pytest.fixture(scope="session")
def fashion_mnist_dir() -> Path:
    folder = Path(os.environ.get("FASHION_MNIST_DIR", "/usr/share/datasets/fashion-mnist"))
    return _there(folder, "Fashion-MNIST (apt-get install dataset-fashion-mnist, or its folder in FASHION_MNIST_DIR)")


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    return _there(ROOT.parent / "shared/reference", "the published checkpoint")


@pytest.fixture(scope="session")
def shared_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For all worker processes."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def made_once(shared_dir: Path) -> Callable[[str, Callable[[Path], object]], Path]:
    return lambda name, make: make_once(shared_dir / name, make)


@pytest.fixture(scope="session")
def trained(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    from models.data import load_digits
    from models.networks.config import ModelConfig
    from models.training.loop import train
    from models.training.recipe import TrainingOptions

    def make(path: Path) -> None:
        options = TrainingOptions(epochs=3, batch_size=50, lr=0.005, seed=0, device="cpu", schedule="one-cycle")
        *_, last = train(ModelConfig(depth=2), load_digits(), options, path)
        assert last.test_accuracy > 0.95

    return made_once("checkpoints/vitbn.safetensors", make)


@pytest.fixture(scope="session")
def repository(trained: Path, made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """`trained`, folded, as version 1 of `vitbn`."""
    from export.checkpoint_to_version import export_checkpoint
    from export.publishing.build_config_pbtxt import Serving
    from export.publishing.publish import publish

    def make(path: Path) -> None:
        publish(path, "vitbn", export_checkpoint(trained).artifact, Serving(threads=1))

    return made_once("repository with a space", make)


@pytest.fixture(scope="session")
def live_server(repository: Path) -> Iterator[object]:
    from serving.local_server import running_server

    with running_server(repository, ["--disable-auto-complete-config"]) as server:  # saves a start of the model
        yield server


@pytest.fixture(scope="session")
def small_mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MNIST's files with 120 training and 40 test images of scikit-learn's digits."""
    from idx_files import write_idx

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
