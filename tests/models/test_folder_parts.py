"""Parts of a folder of pictures, train, val and test: which folders are parts, and which classes."""

import shutil

import numpy as np
import pytest
from striped_folder import CLASSES, striped, striped_folder

from common.pictures import photo_pixels, read_picture
from models.data import DataError
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


def test_parts_of_other_classes_are_refused(folder):
    place = parted(folder, "test")
    shutil.rmtree(place / "test/stripes")
    with pytest.raises(DataError, match=r"parted/test: expected the classes of .*train, found a difference in stripes"):
        load_folder(place)


@pytest.mark.parametrize("held_out", [0, 9])
def test_a_part_of_its_own_needs_no_other(folder, held_out):
    with pytest.raises(DataError, match=f"expected no --hold-out, as it holds pictures apart, found {held_out}"):
        load_folder(parted(folder, "val", "test"), held_out=held_out)


@pytest.mark.parametrize("held_out", [2, 46])
def test_a_part_that_would_lack_a_class(folder, held_out):
    with pytest.raises(DataError, match=f"hold out 3 to 45 of 48 pictures, of 3 classes, found {held_out}"):
        load_folder(folder, (28, 28), held_out)


def test_names_of_parts_that_would_be_classes_are_refused(folder, tmp_path):
    """Else the classes would be "test" and "train", and the real classes sub-folders of them."""
    (tmp_path / "pictures").mkdir()
    shutil.copytree(folder, tmp_path / "pictures/Train")
    shutil.copytree(folder, tmp_path / "pictures/Test")
    with pytest.raises(DataError, match=r"expected train, and test or val, .* found Test, Train; or name a folder"):
        load_folder(tmp_path / "pictures")
    shutil.move(tmp_path / "pictures/Train", tmp_path / "pictures/train")
    shutil.rmtree(tmp_path / "pictures/Test")
    (tmp_path / "pictures/test").mkdir()
    striped(0, 0).save(tmp_path / "pictures/test/0.png")
    with pytest.raises(DataError, match="expected train, and test or val"):
        load_folder(tmp_path / "pictures")


@pytest.mark.parametrize("names", [("train", "test"), ("train", "val"), ("Train", "Test")])
def test_pictures_beside_each_other_in_parts_are_no_two_classes(folder, names):
    for name, part in zip(CLASSES, names, strict=False):
        shutil.copytree(folder / name, folder.parent / "flat" / part)
    with pytest.raises(
        DataError, match=f"each with the same classes' sub-folders, found .*{names[0]}.*; or rename a class"
    ):
        load_folder(folder.parent / "flat")
    shutil.copytree(folder / CLASSES[2], folder.parent / "flat/lorry")
    assert load_folder(folder.parent / "flat").labels == tuple(sorted((*names, "lorry")))


def test_an_outer_folder_names_the_folder_of_the_classes(folder, tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    folder.rename(tmp_path / "a/b/cloth")
    with pytest.raises(
        DataError, match=r"a: expected .* of two classes or more, found 1; name .*a/b/cloth, which holds 3 folders"
    ):
        load_folder(tmp_path / "a")


@pytest.mark.parametrize(
    ("trained", "tested"),
    [("train", "dev"), ("train", "holdout"), ("training_set", "test_set"), ("trn", "tst"), ("学習", "テスト")],
)
def test_parts_under_any_name_are_no_classes(folder, trained, tested):
    place = folder.parent / "parted"
    for part in (trained, tested):
        shutil.copytree(folder, place / part)
    found = ", ".join(sorted((tested, trained)))
    with pytest.raises(DataError, match=f"expected train, and test or val, .* found {found};"):
        load_folder(place)
    shutil.rmtree(place / tested / CLASSES[0])
    with pytest.raises(DataError, match=f"expected train, and test or val, .* found {found};"):
        load_folder(place)


def test_classes_of_the_same_sub_folders_are_read_if_they_have_pictures_of_their_own(folder, tmp_path):
    """Without, they may be parts."""
    for name in CLASSES:
        for view in ("front", "back"):
            shutil.copytree(folder / name, tmp_path / "views" / name / view)
    with pytest.raises(DataError, match=r"; if these are the classes, move their pictures out of the sub-folders$"):
        load_folder(tmp_path / "views")
    for name in CLASSES:
        striped(0, 5).save(tmp_path / "views" / name / "own.png")
    assert load_folder(tmp_path / "views").labels == tuple(sorted(CLASSES))


def test_a_part_among_the_classes_is_no_class(folder):
    for name in CLASSES:
        shutil.copytree(folder / name, folder / "check" / name)
    expected = "expected classes alone, found check with sub-folders of its neighbours' names, cross stripes, "
    with pytest.raises(DataError, match=expected):
        load_folder(folder)


def test_parts_below_the_classes_are_refused(folder, tmp_path):
    """Else its own test pictures would be trained on."""
    for name in CLASSES:
        for part in ("train", "test"):
            shutil.copytree(folder / name, tmp_path / "other" / name / part)
    expected = (
        r"other: expected parts above the classes, as train/cross stripes, found cross stripes/train; or name .*es$"
    )
    with pytest.raises(DataError, match=expected):
        load_folder(tmp_path / "other")


def test_classes_whose_names_look_alike_are_told_apart(folder):
    place = parted(folder, "test")
    (place / "test" / CLASSES[2]).rename(place / "test" / "e\u0301toffe")
    with pytest.raises(DataError, match=r"found a difference in 'e\\u0301toffe', '\\xe9toffe'$"):
        load_folder(place)
