import colorsys
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pooch
import pytest
from cifar_files import write_binary
from commands import invoke, ok
from PIL import Image

from clients.classifier import Classifier, Options
from clients.infer import infer
from clients.web.triton_requests import Triton
from export.to_onnx import export
from models.checkpoints.checkpoint import add_metrics, load
from models.data import load_cifar10
from models.data.cifar import BATCHES, LABELS
from models.train import train
from serving.local_server import Server, running_server

pytestmark = pytest.mark.live

DIGIT_PNG = Path(__file__).parents[1] / "digit.png"


def picture(label: int, draw: np.random.Generator, side: int = 32) -> np.ndarray:
    """uint8 (side, side, 3): five hues, upright or lying bars."""
    hue = (label % 5) / 5 + draw.uniform(-0.03, 0.03)
    colour = np.array(colorsys.hsv_to_rgb(hue % 1, 1, 1))
    bars = np.sin(np.arange(side) * 2 * np.pi * 4 / side + draw.uniform(0, 2 * np.pi)) > 0
    field = np.tile(bars if label < 5 else bars[:, None], (side, 1) if label < 5 else (1, side))
    return np.rint(255 * (0.15 + 0.85 * field[..., None]) * colour).astype(np.uint8)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = np.random.default_rng(0)
    labels = np.arange(100) % 10
    batches = {
        name: (np.stack([picture(label, draw).transpose(2, 0, 1) for label in labels]), labels) for name in BATCHES
    }
    folder = tmp_path_factory.mktemp("cifar")
    write_binary(folder / "cifar-10-batches-bin", batches)
    return folder


@pytest.fixture(scope="module")
def checkpoint(cifar: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoints") / "vitbn.safetensors"
    options = ("--depth", 1, "--epochs", 12, "--batch-size", 50, "--lr", 0.005, "--schedule", "one-cycle")
    ok(train, "--dataset", "cifar10", "--data-dir", cifar, "--output", path, "--device", "cpu", *options)
    return path


@pytest.fixture(scope="module")
def exported(checkpoint: Path, cifar: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    repository = tmp_path_factory.mktemp("photos") / "repository"
    options = ("--rewrites", "all", "--repository", repository, "--name", "photos", "--data-dir", cifar)
    return repository, ok(export, "--checkpoint", checkpoint, *options).output


@pytest.fixture(scope="module")
def server(exported: tuple[Path, str]) -> Iterator[Server]:
    repository = exported[0]
    ok(export, "--model", "vitbn-tiny", "--repository", repository, "--name", "digits")
    with running_server(repository, ["--disable-auto-complete-config"]) as started:
        yield started


def test_it_is_proved_on_its_own_pictures(exported: tuple[Path, str]) -> None:
    repository, output = exported
    assert output.count("images of cifar10\n") == 2
    manifest = json.loads((repository / "photos/1/manifest.json").read_text())
    assert manifest["proved_on"] == "cifar10"
    assert {"fold-affine", "tidy"} <= {*manifest["rewrites"]}
    metadata = {entry.key: entry.value for entry in onnx.load(repository / "photos/1/model.onnx").metadata_props}
    assert json.loads(metadata["model_config"])["preprocessing"] == "photo"
    assert metadata["proved_on"] == "cifar10"


def test_without_its_pictures_the_exporter_says_so(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CIFAR10_DIR", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)
    moved = tmp_path / "moved.safetensors"
    shutil.copy(checkpoint, moved)
    add_metrics(moved, {"data_dir": str(tmp_path / "gone")})
    result = ok(export, "--checkpoint", moved, "--output", tmp_path / "model.onnx")
    assert "Note: proved on noise, not on the model's own images; cifar10: expected its batches" in result.stderr
    assert json.loads((tmp_path / "model.json").read_text())["proved_on"] == "noise"


def test_int8_is_calibrated_and_measured_on_its_own_pictures_where_they_were(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CIFAR10_DIR", raising=False)
    options = ("--precision", "int8", "--max-accuracy-drop", 10)
    result = ok(export, "--checkpoint", checkpoint, "--output", tmp_path / "model.onnx", *options)
    assert "Converted to int8: test accuracy " in result.output
    assert "100 images" in result.output
    assert json.loads((tmp_path / "model.json").read_text())["proved_on"] == "cifar10"


@pytest.mark.parametrize("label", [2, 7], ids=lambda label: LABELS[label])
def test_a_colour_png_is_answered_with_its_class(server: Server, tmp_path: Path, label: int) -> None:
    path = tmp_path / "picture.png"
    small = Image.fromarray(picture(label, np.random.default_rng(100 + label)))
    wide = Image.new("RGB", (400, 300))
    wide.paste(small.resize((300, 300), Image.Resampling.NEAREST), (50, 0))
    wide.save(path)
    result = ok(infer, "--url", server.http_url, "--model", "photos", path)
    assert result.stdout.startswith(f"{path}: {LABELS[label]} (")


def test_models_of_different_labels_must_be_named(server: Server) -> None:
    result = invoke(infer, "--url", server.http_url, DIGIT_PNG)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.endswith(": digits (0 1 2 …), photos (airplane automobile bird …)\n")


def test_the_server_is_as_accurate_as_the_checkpoint(server: Server, checkpoint: Path, cifar: Path) -> None:
    data = load_cifar10(cifar)
    with Classifier(Options(server.grpc_url, "grpc"), "photos") as classifier:
        assert (classifier.model.preprocessing, classifier.model.image_shape) == ("photo", (3, 32, 32))
        found = [prediction.index for prediction in classifier.classify(data.test_images)]
    assert np.mean(found == data.test_labels) == pytest.approx(load(checkpoint).metrics["test_accuracy"])
    assert load(checkpoint).metrics["test_accuracy"] > 0.9


def test_the_page_offers_models_of_drawings_and_of_photos(server: Server) -> None:
    page = Triton(Options(server.http_url))
    found = page.models()
    kinds = {model.name: model.preprocessing for model in found.ready}
    assert (kinds, found.preferred, found.left_out) == ({"digits": "ink", "photos": "photo"}, "digits", [])
    answer = page.ask(DIGIT_PNG.read_bytes(), None)
    assert (answer.model.name, answer.prediction.label) == ("digits", "3")
    answer = page.ask(DIGIT_PNG.read_bytes(), "photos")
    assert (answer.model.name, answer.prepared.image.shape, answer.prepared.shapes) == ("photos", (3, 32, 32), 1)
    assert Triton(Options(server.http_url), "photos").models().preferred == "photos"
    page.close()
