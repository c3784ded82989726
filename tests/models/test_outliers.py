"""Drawings without a class in a training, and others that judge it."""

from dataclasses import replace

import numpy as np
import torch
from trainings import run

from models.checkpoints.checkpoint import load
from models.data import load_digits
from models.data.not_digits import FORMS, JUDGED, TRAINED
from models.data.outliers import NO_CLASS, with_outliers
from models.training.mixing import as_probabilities
from models.training.recipe import TrainingOptions
from models.training.teacher import targets


def test_they_join_the_training_part_alone_without_a_class():
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
