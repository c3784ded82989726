"""timm's own ViT, trained with its own code, from its export to the real server's answers about garments."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from commands import invoke, ok, told
from PIL import Image

from benchmarks.studies import timm_garments as module
from benchmarks.studies.timm_garments import export, normalised, publish, timm_garments, train
from clients.infer import infer
from models.data import Dataset, load_dataset
from serving.local_server import running_server

pytestmark = pytest.mark.slow
IMAGES, ASKED, DEPTH = 128, 12, 2


@pytest.fixture(scope="module", autouse=True)
def _timm() -> None:
    if find_spec("timm") is None:  # its import needs the stubs that the study makes
        pytest.skip("timm is not installed (extra `foreign`)")


@pytest.fixture(scope="module")
def garments(fashion_mnist_dir: Path) -> Dataset:
    return load_dataset("fashion-mnist", fashion_mnist_dir).first(IMAGES, ASKED)


@pytest.mark.live
def test_a_server_answers_about_garments_as_timm_does(garments: Dataset, tmp_path: Path) -> None:
    """With LayerNorm; the study below compares the form with BatchNorm that is published."""
    import torch

    model = train("LayerNorm", garments, 1, DEPTH, tmp_path / "kept.pt")
    file = export(model, tmp_path)
    publish(file, garments.labels, tmp_path / "models")
    for number, image in enumerate(garments.test_images):
        Image.fromarray(image[0]).save(tmp_path / f"{number:02d}.png")
    with torch.inference_mode():
        expected = model(torch.from_numpy(normalised(garments.test_images))).softmax(1).numpy()
    with running_server(tmp_path / "models", []) as server:
        asked = sorted(tmp_path.glob("*.png"))
        done = ok(infer, *asked, "--url", server.http_url, "--json", "--top", 10)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == ASKED
    found = [{each["label"]: each["probability"] for each in answer["top"]} for answer in answers]
    np.testing.assert_allclose([[each[name] for name in garments.labels] for each in found], expected, atol=1e-5)


def losses(done: Result, code: int) -> list[str]:
    """The epochs that it trained."""
    assert done.exit_code == code, done.output
    return [line.split("epoch ")[1].split(":")[0] for line in done.stderr.splitlines() if "loss" in line]


def test_the_study_resumes_and_compares_three_forms(
    fashion_mnist_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASHION_MNIST_DIR", str(fashion_mnist_dir))
    sizes = ["--images", "64", "--test-images", str(ASKED), "--depth", "1", "--norm", "BatchNorm", "--epochs", "2"]
    shared = ["--work", str(tmp_path), "--seconds", "1", "--json", str(tmp_path / "study.json"), *sizes]
    train_epoch = module._train_epoch

    def interrupted(*given: Any) -> float:
        if given[-1] == 1:
            raise KeyboardInterrupt
        return train_epoch(*given)

    with monkeypatch.context() as patched:
        patched.setattr(module, "_train_epoch", interrupted)
        assert losses(invoke(timm_garments, *shared), 130) == ["1 of 2"]
    assert losses(invoke(timm_garments, *shared), 0) == ["2 of 2"]
    _, other = told(timm_garments, *shared, "--epochs", 3)
    assert "expected a training of {'images': 64, 'epochs': 3, 'depth': 1}, found" in other
    written = json.loads((tmp_path / "study.json").read_text())
    assert written["command"].startswith("python benchmarks/studies/timm_garments.py --work DIR")
    rows = written["rows"]
    assert [(row["candidate"], row["batch"]) for row in rows] == [
        (name, batch) for batch in (1, 8) for name in ("timm, PyTorch", "its export, ONNX Runtime", "published")
    ]
    assert all(row["agreement"] == 1 and row["max_abs_error"] < 1e-4 for row in rows)
