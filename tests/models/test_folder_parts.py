"""Parts of a folder of pictures, train, val and test: which folders are parts, and which classes."""

import shutil

import numpy as np
import pytest
from striped_folder import CLASSES, striped, striped_folder

from common.pictures import photo_pixels, read_picture
from models.data.folder import load_folder


@pytest.fixture
def folder(tmp_path):
    return striped_folder(tmp_path / "cloth")


def parted(folder, *parts):
    """The pictures of `folder` in parts: each class's first twelve to train on, four in each other."""
    for name in CLASSES:
        for number, path in enumerate(sorted((folder / name).glob("*.png"))):
            part = ("train", *parts)[max(0, number - 8) // 4] if number < 12 + 4 * len(parts) else None
            if part:
                (folder.parent / "parted" / part / name).mkdir(parents=True, exist_ok=True)
                path.rename(folder.parent / "parted" / part / name / path.name)
    return folder.parent / "parted"


@pytest.mark.parametrize(
    ("parts", "held"), [(("test",), None), (("val",), None), (("validation",), None), (("val", "test"), [4, 4, 4])]
)
def test_parts_that_the_folder_has(folder, parts, held):
    data = load_folder(parted(folder, *parts))
    assert (data.labels, np.bincount(data.train_labels).tolist()) == (CLASSES, [12, 12, 12])
    assert np.bincount(data.test_labels).tolist() == [4, 4, 4]
    assert (np.bincount(data.held[1]).tolist() if data.held else None) == held
    place = folder.parent / "parted" / parts[-1] / CLASSES[0]
    first = photo_pixels(read_picture(sorted(place.iterdir())[0]), (1, 28, 28))
    np.testing.assert_array_equal(data.test_images[0], first)


@pytest.mark.parametrize("names", [("train", "test"), ("train", "val"), ("Train", "Test")])
def test_three_classes_may_be_called_as_parts(folder, names):
    for name, other in zip(CLASSES, (*names, "lorry"), strict=True):
        (folder / name).rename(folder / other)
    assert load_folder(folder).labels == tuple(sorted((*names, "lorry")))


def test_classes_of_the_same_sub_folders_are_read_if_they_have_pictures_of_their_own(folder, tmp_path):
    for name in CLASSES:
        for view in ("front", "back"):
            shutil.copytree(folder / name, tmp_path / "views" / name / view)
        striped(0, 5).save(tmp_path / "views" / name / "own.png")
    assert load_folder(tmp_path / "views").labels == tuple(sorted(CLASSES))
