"""The comparison of a folder's training with scikit-learn: its pictures, its table, and that it goes on."""

import json

import numpy as np
import pytest
from commands import ok

from benchmarks.studies import own_pictures as module
from benchmarks.studies.own_pictures import OTHERS, OURS, _table, own_pictures
from benchmarks.studies.synthetic_datasets import (
    DRAWN,
    NOISE,
    SHAPES,
    STRENGTHS,
    noise,
    shapes,
    smooth_pattern,
    weak_pattern,
)


def row(dataset="shapes", pictures=12, seed=0, ours=80.0, others=(70.0, 75.0)):
    measured = {"network": "cnn", "training s": 1.0, OURS: ours, **dict(zip(OTHERS, others, strict=True))}
    return {"dataset": dataset, "pictures": pictures, "seed": seed, **measured}


def test_shapes_repeat_and_differ_in_shape_alone():
    data = shapes(600, 600)
    images, labels = data.train_images, data.train_labels
    np.testing.assert_array_equal(images, shapes(600, 1).train_images)
    assert (images != data.test_images).any()
    assert (images.shape, images.dtype) == ((600, 3, 64, 64), np.uint8)
    assert np.bincount(labels).tolist() == [100] * len(SHAPES)
    means = np.stack([images[labels == label].mean((0, 2, 3)) for label in range(len(SHAPES))])  # (6, 3)
    assert np.ptp(means, axis=0).max() < 30, "no class has a colour of its own"


@pytest.mark.parametrize("draw", [weak_pattern, smooth_pattern])
def test_a_pattern_is_weaker_than_its_noise_and_in_the_mean_of_its_class(draw):
    data, again = draw(), draw()
    np.testing.assert_array_equal(data.train_images, again.train_images)
    assert data.test_images.shape == (1000, 1, 20, 20)
    means = np.stack([data.train_images[data.train_labels == label].mean((0, 1)) for label in range(4)])  # (4, H, W)
    others = np.stack([data.test_images[data.test_labels == label].mean((0, 1)) for label in range(4)])
    assert means.std((1, 2)) == pytest.approx(15, abs=3)
    assert np.corrcoef(means.reshape(4, -1), others.reshape(4, -1))[:4, 4:].diagonal().min() > 0.8
    assert data.train_images.std() == pytest.approx(NOISE, rel=0.1)


def test_noise_differs_in_its_strength_alone():
    data = noise()
    strengths = [data.train_images[data.train_labels == label].std() for label in range(4)]
    assert strengths == pytest.approx(STRENGTHS, rel=0.05)
    means = np.stack([data.train_images[data.train_labels == label].mean((0, 1)) for label in range(4)])
    assert means == pytest.approx(128, abs=15)


def test_the_lead_is_over_the_better_of_both_and_the_least_comes_first():
    rows = [row(seed=seed, ours=80 + seed) for seed in range(3)] + [row("digits", ours=99, others=(97, 98.5))]
    first, second = _table(rows)
    assert (first["dataset"], first["lead, points"], first["drawings"]) == ("digits", "+0.5 (0.5 to 0.5)", 1)
    assert (second["lead, points"], second[OURS], second["drawings"]) == ("+6.0 (5.0 to 7.0)", 81, 3)


def test_what_was_measured_is_kept(tmp_path, monkeypatch):
    keep, measured = tmp_path / "rows.jsonl", []

    def measure(data, folder, path):
        assert len(list(folder.glob("*/*.png"))) == 12
        measured.append(folder)
        return {name: value for name, value in row().items() if name not in ("dataset", "pictures", "seed")}

    monkeypatch.setattr(module, "_accuracies", measure)
    monkeypatch.setitem(DRAWN, "shapes", lambda: shapes(60, 12))
    asked = ("--dataset", "shapes", "--pictures", 12, "--keep", keep)
    ok(own_pictures, *asked, "--seeds", 2)
    told = ok(own_pictures, *asked, "--seeds", 3).output
    assert len(measured) == 3
    assert [json.loads(line)["seed"] for line in keep.read_text().splitlines()] == [0, 1, 2]
    assert "| +5.0 (5.0 to 5.0)" in told


@pytest.mark.slow
def test_a_folder_is_measured_by_all_three(monkeypatch, tmp_path):
    from models.training import folder_defaults

    monkeypatch.setattr(folder_defaults, "CNN_SEEN", (100, 100))
    keep = tmp_path / "rows.jsonl"
    ok(own_pictures, "--dataset", "digits", "--pictures", 40, "--seeds", 1, "--keep", keep)
    (found,) = map(json.loads, keep.read_text().splitlines())
    assert found["network"] == "cnn"
    assert all(20 < found[name] < 100 for name in (OURS, *OTHERS))
