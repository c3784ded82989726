"""Drawn digits and drawings without a class in a training, and others that judge it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from trainings import run

from models.checkpoints.checkpoint import load
from models.data import DataError, load_dataset, load_digits
from models.data.drawn_digits import drawn, with_drawn
from models.data.not_digits import FORMS, JUDGED, TRAINED
from models.data.outlier_exposure import NO_CLASS, with_outliers
from models.training.mixing import as_probabilities
from models.training.recipe import TrainingOptions
from models.training.teacher import targets


def test_drawings_join_the_training_part_alone_without_a_class():
    digits = load_digits()
    more = with_outliers(digits, 30)
    np.testing.assert_array_equal(more.train_labels, [*digits.train_labels, *[NO_CLASS] * 30])
    np.testing.assert_array_equal(more.train_images[:-30], digits.train_images)
    assert (more.train_images[-30:] > 0).any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(more.test_images, digits.test_images)


def test_no_form_trains_and_judges():
    assert not any(form in JUDGED for form in TRAINED)
    assert sorted(map(str, (*TRAINED, *JUDGED))) == sorted(map(str, FORMS))


def test_their_target_is_every_class_alike_whatever_a_teacher_says():
    labels, taught = torch.tensor([2, NO_CLASS]), torch.tensor([[0.5, 0.25, 0.25, 0.0]]).repeat(2, 1)
    alike = [0.25] * 4
    assert as_probabilities(labels, 4).tolist() == [[0, 0, 1, 0], alike]
    assert targets(taught, labels).tolist() == [[0.25, 0.125, 0.625, 0], alike]


def test_a_training_with_them_rejects_other_drawings(tmp_path):
    options = TrainingOptions(epochs=4, lr=0.003, schedule="one-cycle", hold_out=300, device="cpu")
    found, digits = [], load_digits()
    for number, more in enumerate(({}, {"outliers": 300}, {"outliers": 300, "mixup": 0.4})):
        path = tmp_path / f"{number}.safetensors"
        run(path, digits, replace(options, **more), digits.model_config("vitbn", 1))
        found.append(load(path).metrics)
    for each in found[1:]:
        assert each["rejected_drawings"] > found[0]["rejected_drawings"] + 0.3
        assert each["held_out_accuracy"] > found[0]["held_out_accuracy"] - 0.05


def test_digits_lie_as_mnist_lays_them():
    images, labels = drawn(200)
    assert (images.shape, images.dtype, labels.dtype) == ((200, 1, 28, 28), np.uint8, np.int64)
    assert np.bincount(labels).tolist() == [20] * 10
    ink = images[:, 0] / 255.0
    assert (ink.max(axis=(1, 2)) > 0.6).all()
    assert ((ink > 0.1).any(axis=2).sum(axis=1) <= 20).all(), "a digit is at most 20 pixels high"
    for axis in (1, 2):
        mass = ink.sum(axis=3 - axis)
        centre = (mass * np.arange(28)).sum(axis=1) / mass.sum(axis=1)
        assert np.abs(centre - 14).max() <= 1, "its mass is in the middle"
    widths = [(image[0] > 64).any(axis=0).sum() for image in images[labels == 1]]
    assert np.mean(np.array(widths) >= 7) > 0.5, "most ones have a flag: MNIST's are mostly bars"


def test_the_same_seed_draws_the_same_digits_and_no_two_alike():
    images, _ = drawn(60)
    np.testing.assert_array_equal(images, drawn(60)[0])
    assert len({image.tobytes() for image in images}) == 60
    assert (drawn(60, seed=1)[0] != images).any()


def test_drawn_digits_join_the_training_part_alone():
    digits = load_dataset("digits")
    more = with_drawn(digits, 30)
    assert len(more.train_labels) == len(digits.train_labels) + 30
    np.testing.assert_array_equal(more.train_images[-30:], drawn(30)[0])
    np.testing.assert_array_equal(more.test_images, digits.test_images)


def test_drawn_digits_beside_other_pictures_are_refused():
    digits = load_dataset("digits")
    named = replace(digits, labels=tuple("abcdefghij"))
    said = "digits: expected digits of 1x28x28 beside drawn digits, found other pictures"
    with pytest.raises(DataError, match=f"^{said}$"):
        with_drawn(named, 10)
