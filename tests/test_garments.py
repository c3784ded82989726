"""The shipped networks of garments, asked through the real server with real garments."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from commands import invoke, ok
from PIL import Image

from clients.classifier import Classifier, Options
from clients.infer import infer
from export.to_onnx import export
from models.catalog import shipped
from models.checkpoints.checkpoint import load
from models.data import FASHION_MNIST_LABELS, Dataset, load_dataset
from serving.local_server import Server, running_server

pytestmark = pytest.mark.live

DIGIT_PNG = Path(__file__).parents[1] / "digit.png"
NAME = "garments"


@pytest.fixture(scope="module")
def garments(fashion_mnist_dir: Path) -> Dataset:
    return load_dataset("fashion-mnist", fashion_mnist_dir)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("garments") / "repository"
    ok(export, "--model", NAME, "--rewrites", "all", "--repository", repository)
    with running_server(repository, ["--disable-auto-complete-config"]) as started:
        yield started


def test_the_server_answers_as_the_checkpoint(server: Server, garments: Dataset) -> None:
    """Whose accuracy test_pretrained.py measures."""
    import torch

    images = garments.test_images[:500]
    with Classifier(Options(server.grpc_url, "grpc"), NAME) as classifier:
        found = classifier.logits(images)
    with torch.inference_mode():
        expected = load(shipped(NAME)).model(torch.tensor(images) / 255).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize("on_white", [False, True], ids=["light on black", "dark on white"])
def test_pictures_of_garments(server: Server, garments: Dataset, tmp_path: Path, on_white: bool) -> None:
    """Two of each class, ten times as large, as a picture of the web shows them."""
    chosen = [place for label in range(10) for place in np.flatnonzero(garments.test_labels == label)[:2]]
    paths = []
    for place in chosen:
        pixels = garments.test_images[place, 0]
        picture = Image.fromarray(255 - pixels if on_white else pixels)
        paths.append(tmp_path / f"{place}.png")
        picture.resize((280, 280), Image.Resampling.BICUBIC).save(paths[-1])
    result = ok(infer, "--url", server.http_url, *paths)
    answers = [line.split(": ", 1)[1].rpartition(" (")[0] for line in result.stdout.splitlines()]
    right = [
        answer == FASHION_MNIST_LABELS[garments.test_labels[place]]
        for answer, place in zip(answers, chosen, strict=True)
    ]
    assert sum(right) >= 15, answers
    assert result.stderr.count("inverted: its background is light") == (20 if on_white else 0)


def test_a_digit_is_no_garment(server: Server) -> None:
    result = ok(infer, "--url", server.http_url, DIGIT_PNG)
    assert (
        "unlike the model's training pictures, so the answer may mean nothing: the thing fills 64 % of" in result.stderr
    )
    assert len(result.stderr.splitlines()) == 1
    refused = invoke(infer, "--url", server.http_url, DIGIT_PNG, "--reject-below", "auto")
    assert (refused.exit_code, "rejected (" in refused.stdout) == (4, True)
