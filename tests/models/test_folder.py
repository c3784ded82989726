import json
import os
import shlex
import shutil
import sys
from contextlib import nullcontext

import numpy as np
import pytest
from commands import ok
from PIL import Image
from striped_folder import CLASSES, striped, striped_folder

from common.pictures import photo_pixels, read_picture
from models.checkpoints.checkpoint import load
from models.data import DataError, split
from models.data.folder import check_patches, load_folder
from models.train import train


@pytest.fixture
def folder(tmp_path):
    return striped_folder(tmp_path / "cloth")


def test_classes_and_split(folder):
    data = load_folder(folder)
    assert (data.labels, data.preprocessing, data.patch_size) == (CLASSES, "photo", (4, 4))
    assert data.train_images.shape == (48, 1, 28, 28)
    assert data.test_images.shape == (12, 1, 28, 28)
    assert np.bincount(data.train_labels).tolist() == [16, 16, 16]
    assert np.bincount(data.test_labels).tolist() == [4, 4, 4]
    again = load_folder(folder)
    np.testing.assert_array_equal(again.test_images, data.test_images)
    larger = load_folder(folder, (32, 48), 20)
    assert (larger.test_images.shape, larger.patch_size) == ((12, 1, 32, 48), (4, 6))
    assert (larger.held[0].shape, larger.train_images.shape) == ((20, 1, 32, 48), (28, 1, 32, 48))


@pytest.mark.parametrize(
    ("sizes", "held_out", "parts"),
    [
        ((20, 20, 2), None, ([4, 3, 1], [])),
        ((20, 20, 2), 3, ([4, 3, 1], None)),
        ((20, 20, 20), 3, ([4, 4, 4], [1, 1, 1])),
        ((20, 20, 20), 45, ([4, 4, 4], [15, 15, 15])),
        ((20, 10, 5), 7, ([4, 2, 1], [4, 2, 1])),
        ((2, 2, 2), None, ([1, 1, 1], [])),
    ],
)
def test_each_class_has_its_share_of_the_parts(folder, sizes, held_out, parts):
    for name, size in zip(CLASSES, sizes, strict=True):
        for number in range(size, 20):
            (folder / name / f"{number:02d}.png").unlink()
    tested, held = parts
    if held is None:
        with pytest.raises(DataError, match="étoffe: expected two pictures or more, found 1"):
            load_folder(folder, (28, 28), held_out)
        return
    data = load_folder(folder, (28, 28), held_out)
    found = np.bincount(data.test_labels, minlength=3)
    apart = np.bincount(data.held[1], minlength=3) if data.held else np.zeros(3, int)
    assert sorted(found, reverse=True) == tested
    assert sorted(apart[apart > 0], reverse=True) == held
    assert (np.bincount(data.train_labels, minlength=3) + found + apart).tolist() == list(sizes)


def test_one_coloured_picture_makes_all_coloured(folder):
    striped(0, 1).convert("RGB").save(folder / "stripes/99.jpg")
    assert load_folder(folder).train_images.shape[1] == 3


def test_files_of_a_mac_are_no_pictures(folder, tmp_path):
    before = load_folder(folder)
    (folder / "stripes/._00.png").write_bytes(b"\0\5\x16\7")
    (folder / "__MACOSX/stripes").mkdir(parents=True)
    (folder / "__MACOSX/stripes/._00.png").write_bytes(b"\0\5\x16\7")
    np.testing.assert_array_equal(load_folder(folder).train_images, before.train_images)
    shutil.copytree(folder, tmp_path / "parts/train")
    (folder / "__MACOSX").rename(tmp_path / "parts/__MACOSX")
    shutil.copytree(folder, tmp_path / "parts/test")
    assert load_folder(tmp_path / "parts").labels == CLASSES


def test_what_is_left_out_and_what_is_read_below_a_class_is_said(folder, tmp_path):
    (folder / "stripes/2024/may").mkdir(parents=True)
    striped(1, 3).save(folder / "stripes/2024/may/x.avif")
    striped(1, 3).convert("1").save(folder / "stripes/y.pbm")
    (folder / "stripes/phone.heic").write_bytes(b"no picture that is read here")
    (folder / "labels.csv").write_text("beside")
    (folder / "étoffe/.thumbnails").mkdir()
    (folder / ".more").mkdir()
    striped(1, 3).save(folder / "stripes/.x.png")
    (folder / "stripes/00.png").rename(folder / "stripes/00.jfif")
    striped(1, 3).save(folder / "stripes/moving.gif", save_all=True, append_images=[striped(1, 5)])
    data = load_folder(folder)
    *notes, copies = data.notes  # the stripes are a few pictures, repeated
    assert "8 of 12 test pictures are copies of pictures to train on: the accuracy is too high" in copies
    assert (len(data.train_labels) + len(data.test_labels), tuple(notes)) == (
        63,
        (
            "Left out, as their suffix is of no picture that is read here: 4 files (.heic 1, .txt 3)",
            "Left out, as they are in no class: 1 file beside the classes, such as labels.csv",
            "Left out, as hidden: .hidden, .more",
            "Left out, as hidden: 2 in the classes, such as stripes/.x.png",
            "Read from sub-folders of classes: 1 picture in 1, such as stripes/2024/may",
            "Read of several frames or pages, the first: 1 picture, such as stripes/moving.gif",
        ),
    )
    told = ok(train, "--dataset", folder, "--epochs", 1, "--device", "cpu", "--output", tmp_path / "x.safetensors")
    assert all(note in told.output for note in data.notes)


@pytest.mark.parametrize(
    ("size", "patch"), [((30, 30), (5, 5)), ((28, 64), (4, 8)), ((29, 32), (1, 4)), ((3, 9), (1, 1))]
)
def test_a_patch_size_divides(folder, size, patch):
    data = load_folder(folder, size)
    assert (data.patch_size, data.model_config("vitbn", 1).image_size) == (patch, size)


@pytest.mark.parametrize(
    ("side", "sizes"), [(29, "28 or 30"), (53, "52 or 54"), (46, "45 or 48"), (28, None), (3, None)]
)
def test_a_size_without_patches_names_the_nearest(side, sizes):
    with pytest.raises(DataError, match=f"divide, found {side}; take {sizes}, ") if sizes else nullcontext():
        check_patches((28, side))


def test_of_many_classes_the_smallest_are_listed(tmp_path):
    for number in range(13):
        (tmp_path / f"kind {number}").mkdir()
        for picture in range(4 if number == 12 else 6):
            pixels = np.random.default_rng([number, picture]).integers(0, 256, (28, 28), np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"kind {number}" / f"{picture}.png")
    small = ("--model", "vitbn", "--depth", 1, "--dim", 8, "--heads", 1, "--dim-head", 8, "--mlp-dim", 8, "--epochs", 1)
    printed = ok(train, "--dataset", tmp_path, *small, "--output", tmp_path / "kinds.safetensors").output
    (line,) = (line for line in printed.splitlines() if line.startswith("Pictures to train"))
    assert line.startswith("Pictures to train and to test on: of 13 classes the smallest: kind 12: 3 and 1; kind 0: ")
    assert line.count(";") == 11


def test_training_with_the_published_options(folder, tmp_path, monkeypatch):
    path = tmp_path / "cloth.safetensors"
    small = ("--depth", 1, "--dim", 16, "--heads", 2, "--dim-head", 8, "--mlp-dim", 16, "--patch-size", 16, 16)
    options = ("--pool", "mean", "--pos-emb", "pe1d", "--dropout", 0.1, "--emb-dropout", 0.2, "--qkv-bias")
    arguments = ("--dataset", folder, "--image-size", 32, 32, "--hold-out", 15, "--epochs", 2, "--batch-size", 9)
    words = [str(each) for each in (*arguments, *small, *options, "--device", "cpu", "--output", path)]
    monkeypatch.setattr(sys, "argv", ["models/train.py", *words])
    result = ok(train, *words)
    assert "to test on: cross stripes: 11, 5 and 4; stripes: 11, 5 and 4; étoffe: 11, 5 and 4" in result.output
    said = (
        "Not calibrated: expected 20 held-out images or more to fit a temperature, found 15; train with --hold-out 20"
    )
    assert said in result.output
    config = load(path).config
    assert (config.pool, config.pos_emb, config.dropout, config.emb_dropout) == ("mean", "pe1d", 0.1, 0.2)
    assert (config.qkv_bias, config.patch_size, config.labels, config.image_size) == (True, (16, 16), CLASSES, (32, 32))
    written = json.loads(path.with_suffix(".json").read_text())
    assert (written["dataset"], written["test_images"]) == (str(folder), 12)
    for epoch in written["series"]:
        weights = np.bincount(load_folder(folder, (32, 32), 15).held[1]) / 15
        assert np.dot(weights, epoch["class_accuracy"]) == pytest.approx(epoch["test_accuracy"])
    program, *typed = shlex.split(written["command"])
    assert (program, typed) == ("python", ["models/train.py", *words])


def test_many_pictures_of_classes_with_few(folder, monkeypatch):
    """The automatic hold-out takes a picture of each class, or none at all where a class has a single picture."""
    monkeypatch.setattr(split, "MANY", 40)
    assert len(load_folder(folder).held[0]) == 4
    for number in range(2, 20):
        (folder / "stripes" / f"{number:02d}.png").unlink()
    many = load_folder(folder)
    assert many.held is None
    assert np.bincount(many.train_labels)[1] == 1


def test_pictures_of_several_classes_are_said(folder):
    """They make the accuracy too low, not too high, though some are to train on and their copies to test."""
    for number in range(20):
        Image.fromarray(np.full((9, 9), 7 * number, np.uint8)).save(folder / "stripes" / f"{number:02d}.png")
        Image.fromarray(np.full((9, 9), 7 * number, np.uint8)).save(folder / "cross stripes" / f"{number:02d}.png")
    told = " ".join(load_folder(folder).notes)
    assert "20 pictures are in several classes, such as in cross stripes and stripes: no model can tell" in told
    assert "copies" not in told


def test_copies_in_another_format_and_in_the_held_out_part_are_said(tmp_path):
    for name, number, *places in (
        *(("cat", 0, "train/0.bmp", "val/0.png"), ("cat", 1, "train/1.bmp", "test/0.png"), ("cat", 2, "test/1.png")),
        *(("dog", 3, "train/0.bmp"), ("dog", 4, "val/0.png", "test/0.png")),
    ):
        noise = Image.fromarray(np.random.default_rng(number).integers(0, 256, (28, 28), np.uint8))
        for part, file in (place.split("/") for place in places):
            (tmp_path / part / name).mkdir(parents=True, exist_ok=True)
            (noise.convert("RGB") if file.endswith("png") else noise).save(tmp_path / part / name / file)
    fact = "pictures are copies of pictures to train on: the accuracy is too high; remove the copies"
    assert load_folder(tmp_path).notes == (f"1 of 2 held-out {fact}", f"2 of 3 test {fact}")


def test_white_drawings_on_transparency_are_said(folder):
    """Transparent pixels become white, so nothing is left of them."""
    for path in folder.glob("*/*.png"):
        drawing = Image.open(path)
        Image.merge("LA", (Image.new("L", drawing.size, 255), drawing)).save(path)
    told = "All white, as transparent pixels become white; give them a background: 60 pictures, such as "
    assert any(note.startswith(told) for note in load_folder(folder).notes)


def test_pictures_of_which_half_is_cut_away_are_said(folder):
    for name in ("stripes/a.png", "stripes/b.png"):
        striped(1, 3).resize((300, 40)).save(folder / name)
    told = "Read of the middle, less than half of the picture; an --image-size of its form reads more: "
    assert f"{told}2 pictures, such as stripes/a.png" in load_folder(folder).notes


@pytest.mark.parametrize(
    ("form", "size"),
    [
        ((80, 40), (28, 28)),
        ((90, 40), (20, 48)),
        ((40, 100), (48, 20)),
        ((120, 40), (20, 64)),
        ((9, 300), (64, 20)),
    ],
)
def test_the_images_have_the_form_of_most_pictures(folder, form, size):
    others = sorted(folder.glob("*/*.png"))[::2][1:]
    for path in set(folder.glob("*/*.png")) - set(others):
        Image.open(path).resize(form).save(path)
    data = load_folder(folder)
    assert data.train_images.shape[2:] == size
    check_patches(size)
    assert load_folder(folder, (28, 28)).train_images.shape[2:] == (28, 28)


def test_a_folder_named_as_a_dataset_is_said(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder.rename("digits")
    command = ["--epochs", 1, "--depth", 1, "--batch-size", 1438, "--device", "cpu", "--output"]
    told = "digits: the dataset of this name, not the folder; for the folder give ./digits\n"
    assert told in ok(train, *command, "x.safetensors").output
    assert told not in ok(train, *command, "y.safetensors", "--dataset", "./digits").output


def test_links_to_folders_are_not_followed_and_said_and_a_pipe_stops_nothing(folder, tmp_path):
    os.mkfifo(folder / "stripes/pipe.png")
    (tmp_path / "elsewhere").mkdir()
    striped(1, 3).save(tmp_path / "elsewhere/x.png")
    (folder / "stripes/more").symlink_to(tmp_path / "elsewhere")
    (folder / "stripes/back").symlink_to(folder)
    data = load_folder(folder)
    assert len(data.train_labels) + len(data.test_labels) == 60
    assert "Left out, as links to folders: 2 in the classes, such as stripes/back" in data.notes


def test_classes_of_nearly_one_name_are_said(folder):
    shutil.copytree(folder / "stripes", folder / "Stripes")
    told = "Classes of nearly one name: 'Stripes' and 'stripes'; if they are the same, move their pictures together"
    assert told in load_folder(folder).notes
    shutil.move(folder / "Stripes", folder / "stri\u200cpes")
    assert any(note.startswith("Classes of nearly one name: ") for note in load_folder(folder).notes)
    shutil.move(folder / "stri\u200cpes", folder / "e\u0301toffe")
    (note,) = [note for note in load_folder(folder).notes if note.startswith("Classes of nearly one name: ")]
    assert r"'e\u0301toffe' and '\xe9toffe'" in note


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
