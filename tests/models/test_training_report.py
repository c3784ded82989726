"""The page of a finished training."""

import base64
import io
import json
import re
from dataclasses import replace
from functools import partial
from html import unescape
from html.parser import HTMLParser

import commands
import numpy as np
import pytest
from PIL import Image

from models.checkpoints.checkpoint import load
from models.data import load_digits
from models.evaluation.accuracy_and_calibration import measure_accuracy, on_device
from models.evaluation.report import MISTAKEN, Mistake, Result, measure
from models.evaluation.report_page import MOST_CLASSES, page
from models.train import train

ok = partial(commands.ok, train)
TINY = ("--depth", 1, "--dim", 16, "--heads", 2, "--dim-head", 8, "--mlp-dim", 16, "--batch-size", 200)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The report's text and the checkpoint of two epochs on the digits, far from full."""
    folder = tmp_path_factory.mktemp("report")
    options = ("--epochs", 2, "--device", "cpu", "--output", folder / "run.safetensors")
    told = ok(*TINY, *options, "--report", folder / "new" / "report.html").output
    assert f"Wrote {folder / 'new/report.html'}: open it in a browser" in told
    return (folder / "new/report.html").read_text(), folder / "run.safetensors"


class Parts(HTMLParser):
    """What a browser would show of a page, and every address that it would ask for."""

    VOID = ("meta", "img", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.images, self.cells, self.texts = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.addresses += [given[name] for name in ("src", "href", "data", "srcset") if name in given]
        if tag == "img":
            self.images.append(given)
        if tag == "td" and "title" in given:
            self.cells.append(given["title"])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        assert "svg" in self.open

    def handle_data(self, data):
        self.texts.append(data)


def pixels_of(image):
    kind, content = image["src"].split(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def test_a_page_of_digits_needs_no_other_file(trained):
    parts = Parts(trained[0])
    assert parts.addresses
    assert all(address.startswith("data:image/png;base64,") for address in parts.addresses)
    assert "url(" not in trained[0]
    assert len(parts.images) == MISTAKEN


def test_the_matrix_counts_each_test_image_once(trained):
    data = load_digits()
    result = measure(trained[1], data, "cpu")
    assert result.confusion.sum(1).tolist() == np.bincount(data.test_labels).tolist()
    share = measure_accuracy(load(trained[1]).model, *on_device(data.test_images, data.test_labels, "cpu"))
    assert result.right / result.pictures == share == load(trained[1]).metrics["test_accuracy"]
    assert not (result.confusion == result.confusion.T).all()  # so that a turned matrix is seen
    shown = {title: int(title.rpartition(" ")[2]) for title in Parts(trained[0]).cells}
    assert shown == {
        f"{label}, answered {answer}: {count}": count
        for label, row in enumerate(result.confusion.tolist())
        for answer, count in enumerate(row)
    }


def test_the_most_mistaken_pictures_are_the_networks(trained):
    data = load_digits()
    result = measure(trained[1], data, "cpu")
    held = [mistake.of_label for mistake in result.mistakes]
    assert held == sorted(held)
    assert all(
        mistake.label != mistake.answer and mistake.of_label < mistake.probability for mistake in result.mistakes
    )
    for mistake, image in zip(result.mistakes, Parts(trained[0]).images, strict=True):
        np.testing.assert_array_equal(pixels_of(image), mistake.pixels[0])
        assert image["alt"] == f"{mistake.label}, answered {mistake.answer}"
        (number,) = np.flatnonzero((data.test_images == mistake.pixels).all(axis=(1, 2, 3)))
        assert str(data.test_labels[number]) == mistake.label


def test_the_temperature_softens_probabilities_and_changes_no_answer(trained, tmp_path):
    described = json.loads(trained[1].with_suffix(".json").read_text())
    for suffix in (".safetensors", ".json"):
        (tmp_path / f"soft{suffix}").write_bytes(trained[1].with_suffix(suffix).read_bytes())
    (tmp_path / "soft.json").write_text(json.dumps(described | {"temperature": 5.0}))
    sharp, soft = (measure(path, load_digits(), "cpu") for path in (trained[1], tmp_path / "soft.safetensors"))
    np.testing.assert_array_equal(sharp.confusion, soft.confusion)
    assert max(each.probability for each in soft.mistakes) < max(each.probability for each in sharp.mistakes)


def example(labels, confusion, mistakes=(), accuracies=(0.5, 0.9, 0.8)):
    series = [{"training_loss": 1 / (1 + number), "test_accuracy": share} for number, share in enumerate(accuracies)]
    config = {"model": "cnn", "dim": 64, "image_size": [32, 48], "channels": 3}
    about = {"dataset": "my <pictures>", "command": "vitbn train --dataset 'my <pictures>'", "config": config}
    about |= {"options": {"hold_out": 5, "ema": None, "seed": 0}, "series": series, "epochs": 3, "kept_epoch": 2}
    return Result(about, tuple(labels), np.array(confusion), mistakes)


def test_photos_in_colour_and_names_of_any_kind():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 48), np.uint8)
    mistake = Mistake(pixels, "<b>ü", 'a "quoted" & name', 0.75, 0.125, "<b>ü/1.jpg")
    text = page(example(["<b>ü", 'a "quoted" & name'], [[3, 1], [0, 4]], [mistake]))
    parts = Parts(text)
    assert "<b>ü" not in text
    assert '<b>ü, answered a "quoted" & name: 1' in parts.cells
    assert "<b>ü/1.jpg" in parts.texts
    assert "8 pictures, 87.5 % right (52.9 to 97.8, 95 % interval)" in text
    (image,) = parts.images
    np.testing.assert_array_equal(pixels_of(image), pixels.transpose(1, 2, 0))
    assert (image["width"], image["height"]) == ("112", "75")
    assert "Held-out accuracy" in text
    assert "seed 0" in text
    assert "ema" not in text


@pytest.mark.parametrize("classes", [2, 10, 40, 200])
def test_of_many_classes_those_with_the_most_mistakes_are_shown(classes):
    confusion = 9 * np.eye(classes, dtype=np.int64)
    confusion[-1, 0] = 4
    labels = [f"class {number:03d}" for number in range(classes)]
    text = page(example(labels, confusion))
    assert len(Parts(text).cells) == min(classes, MOST_CLASSES) ** 2
    assert f"class {classes - 1:03d}, answered class 000: 4" in text
    assert ("with the most mistakes" in text) == (classes > MOST_CLASSES)
    assert len(text) < 1_000_000


def test_no_mistakes_and_no_accuracies():
    text = page(example("ab", [[3, 0], [0, 0]], accuracies=[None, None, None]))
    assert "None: all answers are right." in text
    assert "accuracy by epoch" not in text
    assert "none" in unescape(text)  # the share of a class without pictures


@pytest.mark.parametrize("values", [(0.5,), (0.1, 0.1), (3e-7, 5e2), (0.0, 0.0)])
def test_curves_of_any_values_stay_inside(values):
    text = page(replace(example("ab", [[1, 0], [0, 1]]), about=with_losses(values)))
    (points, *_) = re.findall(r'polyline points="([^"]*)"', text)
    places = np.array([point.split(",") for point in points.split()], float)
    assert np.isfinite(places).all()
    assert (places >= 0).all()
    assert (places <= (460, 240)).all()


def with_losses(values):
    about = example("ab", [[1, 0], [0, 1]]).about
    series = [{"training_loss": value, "test_accuracy": None} for value in values]
    return about | {"series": series, "epochs": len(values), "kept_epoch": len(values)}


def test_a_finished_run_gets_its_report_later(trained, tmp_path):
    options = (*TINY, "--epochs", 2, "--device", "cpu", "--output", trained[1])
    before = trained[1].read_bytes()
    ok(*options, "--resume", "--report", tmp_path / "later.html")
    assert Parts((tmp_path / "later.html").read_text()).images == Parts(trained[0]).images
    assert trained[1].read_bytes() == before
