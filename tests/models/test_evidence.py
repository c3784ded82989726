"""The evidence below which a picture shows none of a model's classes."""

import numpy as np
import pytest
import torch

from clients.prediction import Answer, predictions
from common.energy_score import evidence
from models.catalog import SHIPPED, describe, shipped
from models.checkpoints.checkpoint import load
from models.data import load_digits
from models.data.drawn_digits import drawn
from models.data.not_digits import FORMS, not_digits
from models.data.outlier_exposure import judging_outliers
from models.evaluation.accuracy_and_calibration import classify
from models.evaluation.rejection import MOST_LOST, fit_evidence_limit


def logits_of(peaks):
    """(n, 10): a peak beside zeros."""
    return torch.as_tensor(np.outer(peaks, np.eye(10)[3]))


def test_the_threshold_loses_at_most_its_share_and_no_more_than_it_needs():
    rng = np.random.default_rng(0)
    held, near = logits_of(rng.normal(12, 2, 5000)), logits_of(rng.normal(9, 2, 2000))
    fitted = fit_evidence_limit(held, near)
    of_held, of_near = evidence(held.numpy()), evidence(near.numpy())
    assert 0.9 * MOST_LOST < fitted["rejected_held_out"] <= MOST_LOST
    assert fitted["rejected_held_out"] == pytest.approx((of_held < fitted["evidence_limit"]).mean(), abs=0.0005)
    assert fitted["rejected_drawings"] == pytest.approx((of_near < fitted["evidence_limit"]).mean(), abs=0.002)
    apart = fit_evidence_limit(held, logits_of(rng.normal(2, 0.1, 2000)))
    assert (apart["rejected_held_out"], apart["rejected_drawings"]) == (0.0, 1.0)
    above = fit_evidence_limit(held, logits_of(rng.normal(40, 1, 2000)))
    assert (above["rejected_held_out"], above["rejected_drawings"]) == (0.0, 0.0)


def test_a_number_that_all_logits_share_is_no_evidence():
    logits = np.random.default_rng(0).normal(0, 30, (50, 10)).astype(np.float32)
    centred = torch.tensor(logits).double() - torch.tensor(logits).double().mean(1, keepdim=True)
    np.testing.assert_allclose(evidence(logits), centred.logsumexp(1).numpy(), rtol=1e-12)
    np.testing.assert_allclose(evidence(logits.astype(np.float64) + 50), evidence(logits), rtol=1e-12)
    found = [each.evidence for each in predictions(Answer(logits, "1", 0.0), tuple("0123456789"), 0.9)]
    np.testing.assert_array_equal(found, evidence(logits))


def test_drawings_are_laid_out_as_the_models_pictures():
    ink = judging_outliers(load_digits(), 200)
    assert (ink.shape, ink.dtype) == ((200, 1, 28, 28), np.uint8)
    digits = drawn(100)[0]
    assert abs(float((ink > 0).mean()) - float((digits > 0).mean())) < 0.1
    again = not_digits(2 * len(FORMS))
    np.testing.assert_array_equal(again, not_digits(2 * len(FORMS)))
    assert len(np.unique(again.reshape(len(again), -1), axis=0)) == len(again)


@pytest.mark.parametrize("background", [0, 255])
def test_drawings_for_photos_in_colour_fill_the_frame(background):
    from dataclasses import replace

    colour = np.full((60, 3, 40, 60), background, np.uint8)
    colour[:, :, 2:38, 10:50] = 128
    labels = np.arange(60) % 2
    data = replace(
        load_digits(), train_images=colour, train_labels=labels, test_images=colour, test_labels=labels,
        labels=("cat", "dog"), preprocessing="photo",
    )  # fmt: skip
    found = judging_outliers(data, 100)
    assert found.shape == (100, 3, 40, 60)
    assert np.median(found[:, :, 0]) == background
    rows = (found != background).any(axis=(1, 3))  # (n, 40)
    assert np.mean(rows.any(axis=1)) == 1.0
    assert np.median(rows.sum(axis=1)) > 0.6 * 40


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_network_has_its_threshold(name):
    metrics = describe(name).metrics
    assert np.isfinite(metrics["evidence_limit"])
    assert 0 < metrics["rejected_held_out"] <= MOST_LOST
    assert metrics["rejected_drawings"] > 0.6


@pytest.mark.slow
def test_the_stored_threshold_rejects_other_drawings_alike():
    """tests/test_pretrained.py fits it again to those that it was fitted to."""
    network = load(shipped("vitbn-tiny"))
    fresh = evidence(classify(network.model, torch.tensor(not_digits(400, seed=7))).numpy())
    share = float((fresh < network.metrics["evidence_limit"]).mean())
    assert share == pytest.approx(network.metrics["rejected_drawings"], abs=0.06)
