from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from commands import ok
from PIL import Image

from clients.images.decode import photo_to_model_input
from export.to_onnx import export
from models.train import train

COLOURS = {"grass": (20, 180, 40), "sea": (10, 60, 200), "Ziegel, rot": (190, 50, 30)}


def picture(colour: tuple[int, int, int], seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).normal(colour, 25, (30, 44, 3))
    return Image.fromarray(noise.clip(0, 255).astype(np.uint8))


@pytest.mark.slow
def test_from_a_folder_to_answers(tmp_path: Path) -> None:
    for name, colour in COLOURS.items():
        (tmp_path / "places" / name).mkdir(parents=True)
        for seed in range(20):
            picture(colour, seed).save(tmp_path / "places" / name / f"{seed}.png")
    path, repository = tmp_path / "places.safetensors", tmp_path / "repository"
    small = ("--depth", 1, "--dim", 16, "--heads", 2, "--dim-head", 8, "--mlp-dim", 16)
    options = ("--epochs", 8, "--batch-size", 12, "--lr", 0.01, "--device", "cpu", "--output", path)
    ok(train, "--dataset", tmp_path / "places", *small, *options)
    told = ok(export, "--checkpoint", path, "--rewrites", "all", "--repository", repository, "--name", "places").output
    assert f"of {tmp_path / 'places'}" in told or "places" in told
    assert (repository / "places/labels.txt").read_text().splitlines() == sorted(COLOURS)
    model = onnxruntime.InferenceSession(repository / "places/1/model.onnx")
    for name, colour in COLOURS.items():
        pixels = np.stack([photo_to_model_input(picture(colour, seed), (3, 28, 28)) for seed in range(100, 110)])
        (logits,) = model.run(None, {"image": pixels})
        answers = [sorted(COLOURS)[index] for index in logits.argmax(1)]
        assert answers.count(name) >= 9
