import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pooch
import pytest
from cifar_files import random_batches, write_binary
from idx_files import write_idx

from export.sample_images import own_dataset, own_sample
from models.data import FASHION_MNIST_LABELS, DataError, load_digits
from models.data.cifar import load_cifar10
from models.data.mnist import IDX_SETS
from models.networks.config import ModelConfig

FASHION = ModelConfig(labels=FASHION_MNIST_LABELS, preprocessing="photo")


def write_idx_files(folder: Path, images: np.ndarray) -> Path:
    for part in ("train", "t10k"):
        write_idx(folder / f"{part}-images-idx3-ubyte", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte", np.zeros(len(images)))
    return folder


def test_models_of_digits_need_no_data() -> None:
    sample = own_sample(ModelConfig(), {"dataset": "mnist"}, None)
    assert sample.of == "digits"
    np.testing.assert_array_equal(sample.images, load_digits().test_images[:64])


def test_garments_are_proved_on_garments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(0, 256, (70, 28, 28), np.uint8)
    monkeypatch.setenv("FASHION_MNIST_DIR", str(write_idx_files(tmp_path, images)))
    sample = own_sample(FASHION, {"dataset": "fashion-mnist"}, None)
    assert sample.of == "fashion-mnist"
    np.testing.assert_array_equal(sample.images[:, 0], images[:64])


def test_a_few_pictures_are_repeated(tmp_path: Path) -> None:
    data = load_cifar10(write_binary(tmp_path, random_batches(3)))
    sample = own_sample(data.model_config("vitbn", 1), {"dataset": "cifar10"}, tmp_path)
    np.testing.assert_array_equal(sample.images[3:6], data.test_images)
    assert (sample.of, sample.images.shape) == ("cifar10", (64, 3, 32, 32))


def test_a_checkpoint_that_names_no_dataset() -> None:
    config = ModelConfig(channels=3, image_size=(32, 32), patch_size=(4, 4), preprocessing="photo")
    assert own_sample(config, {}, None).of == "noise"


@pytest.mark.parametrize("with_pooch", [True, False])
def test_nothing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_pooch: bool) -> None:
    monkeypatch.delenv("FASHION_MNIST_DIR", raising=False)
    monkeypatch.setitem(IDX_SETS, "fashion-mnist", replace(IDX_SETS["fashion-mnist"], installed=None))
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)
    if not with_pooch:
        monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match=r"fashion-mnist: expected .* in --data-dir, .* found none"):
        own_sample(FASHION, {"dataset": "fashion-mnist"}, None)
    assert list(tmp_path.iterdir()) == []


def test_other_images_or_classes_are_refused(tmp_path: Path) -> None:
    images = np.zeros((3, 20, 20), np.uint8)
    expected = r"fashion-mnist: expected images \(1, 28, 28\) of 10 classes, .* found \(1, 20, 20\) of 10"
    with pytest.raises(DataError, match=expected):
        own_dataset(FASHION, {"dataset": "fashion-mnist"}, write_idx_files(tmp_path, images))
