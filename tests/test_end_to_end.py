import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import ok

from clients.classifier import Classifier, Options
from export.to_onnx import export
from models.data import load_dataset
from serving.local_server import running_server
from vitbn import BENCHMARKS, COMMANDS

ROOT = Path(__file__).parents[1]


@pytest.mark.live
def test_the_published_checkpoint_served(reference_dir: Path, mnist_dir: Path, tmp_path: Path) -> None:
    """Out of a file as others wrap it."""
    import torch

    repository, wrapped = tmp_path / "repository", tmp_path / "theirs.pth"
    state = torch.load(reference_dir / "vitbn.pth", weights_only=True)
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}, wrapped)
    told = ok(export, "--fuse-bn", "--checkpoint", wrapped, "--depth", 1, "--repository", repository)
    assert "Note: taken from the file: the entry state_dict, names without their prefix module." in told.stderr
    images = load_dataset("mnist", mnist_dir).test_images[:64]
    with np.load(reference_dir / "vitbn_logits.npz") as held:
        published = held["depth1"]
    with (
        running_server(repository, ["--disable-auto-complete-config"]) as server,
        Classifier(Options(server.http_url)) as classifier,
    ):
        assert np.abs(classifier.logits(images) - published).max() < 1e-3


SCRIPTS = [f"{entry.module.replace('.', '/')}.py" for entry in (COMMANDS | BENCHMARKS).values()]


@pytest.mark.parametrize("script", dict.fromkeys(SCRIPTS))
def test_help_answers_in_under_half_a_second(script: str, processor_time_s: Callable[..., float]) -> None:
    """On a slow or busy machine: in five times what the import of click and numpy takes there, a tenth on others."""

    def is_quick() -> bool:
        taken_s = processor_time_s([sys.executable, str(ROOT / script), "--help"])
        return taken_s < 0.5 or taken_s < 5 * processor_time_s([sys.executable, "-c", "import click, numpy"])

    assert any(is_quick() for _ in range(3))


def test_no_module_shadows_another_when_run_as_a_script() -> None:
    """A script's own folder is first on its import path."""
    files = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    folders = {"common", "models", "export", "serving", "clients", "benchmarks"}
    ours = [Path(line) for line in files.stdout.splitlines() if "backends" not in line]
    siblings = {path.stem for path in ours if path.parts[0] in folders} - {"__init__"}
    dependencies = {"torch", "einops", "onnx", "onnxruntime", "numpy", "click"}
    dependencies |= {"triton", "tritonclient", "tensorrt", "polygraphy"}
    assert not siblings & (folders | dependencies | set(sys.stdlib_module_names))
