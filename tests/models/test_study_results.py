import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from models.catalog import PRETRAINED, shipped
from models.checkpoint import load
from models.config import ModelConfig
from models.data import load_digits
from models.plots import figures, results
from models.plots.results import Column, cell, markdown, table
from models.studies import depths, dnn, frontier, learning_rates, optimised
from models.studies.protocol import Extent, assemble, describe_runs, in_words
from models.studies.ratios import compare, gain, ratio
from models.studies.running import Run, StudyError, Trained
from models.training import Epoch, TrainingOptions

MACHINE = {"cpu": "a CPU", "cores": 2, "threads": 1, "device": "cpu", "load_1min": 1.5}
OPTIONS = TrainingOptions(epochs=3, batch_size=100, lr=0.01, seed=0, device="cpu")


def trained(model, training_s, test_s, depth=6, lr=0.01):
    run = Run(f"{model}-{depth}-{lr}", ModelConfig(model=model, depth=depth), replace(OPTIONS, lr=lr))
    series = tuple(
        Epoch(number, training, test, 2.0 / number, 0.9 + 0.02 * number)
        for number, (training, test) in enumerate(zip(training_s, test_s, strict=True), 1)
    )
    return Trained(run, Path("none"), {}, series)


def all_of_learning_rates():
    def times(model, depth, lr):
        block_s = (1.25 if model == "vit" else 1.0) * (1 + lr)
        test_s = 0.2 if model == "vitbn" else 0.1
        return [9.0, depth * block_s, depth * block_s], [depth * test_s] * 3

    return [
        trained(model, *times(model, depth, lr), depth=depth, lr=lr)
        for lr in learning_rates.RATES
        for model, depth in learning_rates.NETWORKS
    ]


@pytest.fixture(scope="module")
def scope():
    return learning_rates.study(learning_rates.RATES, all_images=False).scope(load_digits(), "cpu", quick=True)


@pytest.fixture(scope="module")
def result(scope):
    runs = all_of_learning_rates()
    return {
        "study": "learning-rates",
        "question": "Why?",
        "command": "python models/study.py learning-rates --output DIR",
        "scope": scope.as_json(),
        "timing": results.TIMING,
        "environment": MACHINE,
        "runs": describe_runs(runs),
        **learning_rates.findings(runs, scope),
    }


def test_ratio_is_of_medians():
    assert ratio([6.0, 100.0, 5.0], [2.0, 2.0, 0.1]) == 3.0


@pytest.mark.parametrize(("r", "g"), [(1.0, 0.0), (2.0, 0.5), (5.0, 0.8), (0.5, -1.0)])
def test_gain_is_the_share_of_time_saved(r, g):
    assert gain(r) == pytest.approx(g)


def test_comparison_is_over_all_pairs_with_the_range_of_each():
    vits = [trained("vit", [4, 4, 4], [3, 3, 3]), trained("vit", [8, 8, 8], [3, 3, 3])]
    others = [trained("vitbn", [2, 2, 2], [6, 6, 6]), trained("vitbn", [2, 2, 2], [6, 6, 6])]
    compared = compare(vits, others)
    assert compared["r_t"] == 3.0  # (4 4 4 8 8 8) over 2
    assert compared["r_t_range"] == [2.0, 4.0]
    assert compared["g_t"] == pytest.approx(2 / 3)
    assert (compared["r_v"], compared["g_v"], compared["r_v_range"]) == (0.5, -1.0, [0.5, 0.5])


def test_pairs_with_a_run_without_an_epoch_are_left_out():
    whole, none = trained("vit", [4, 4, 4], [3, 3, 3]), trained("vitbn", [], [])
    assert compare([whole, whole], [none, trained("vitbn", [2, 2, 2], [3, 3, 3])])["r_t_range"] == [2.0, 2.0]
    nothing = compare([whole], [none])
    assert (nothing["r_t"], nothing["g_v"], nothing["r_v_range"]) == (None, None, [None, None])


@pytest.mark.slow
@pytest.mark.parametrize("every", [True, False], ids=["all", "some"])
@pytest.mark.parametrize("study", [learning_rates, depths, dnn, optimised])
def test_runs_that_diverge_in_their_first_epoch_leave_empty_cells(study, every, scope, monkeypatch):
    monkeypatch.setattr(depths, "_plain_accuracy", lambda one, scope: 0.5)
    planned = {
        learning_rates: learning_rates.runs(scope, learning_rates.RATES),
        depths: depths.runs(scope, depths.RATES, (2, 3, 4)),
        dnn: dnn.runs(scope),
        optimised: [Run(model, ModelConfig(model=model), OPTIONS) for model in ("vit", "vitbn", "cnn")],
    }
    whole = trained("vit", [4, 4, 4], [3, 3, 3]).series
    ended = [
        Trained(run, Path("none"), {}, () if every or number == 1 else whole)
        for number, run in enumerate(planned[study])
    ]
    result = {"study": "s", "question": "?", "command": "c", "scope": scope.as_json(), "timing": "", "notes": []}
    result |= {"environment": MACHINE, "runs": describe_runs(ended), **study.findings(ended, scope)}
    assert "| - |" in markdown(result, [])
    for figure in study.plots(result).values():
        assert figures.png(figure)


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_network_that_diverges_is_left_out_of_the_frontier(scope, monkeypatch, epochs):
    """Without its last epoch it has no test accuracy."""
    first, *others = frontier.NETWORKS
    held = dict.fromkeys(others, load(shipped("vitbn-tiny")))
    monkeypatch.setattr(frontier, "shipped", lambda pretrained, scope: held)
    monkeypatch.setattr(frontier, "recipe", lambda path, scope: OPTIONS)
    ended = [replace(trained("vitbn", [1] * epochs, [1] * epochs), run=Run("vitbn-depth-1", first, OPTIONS))]
    derived = frontier.findings(PRETRAINED, ended, scope)["derived"]
    assert len(derived) == len(others)


def test_published_configuration_is_named_and_apart(result):
    rows = {(row["configuration"], row["model"]): row for row in result["derived"]}
    assert set(rows) == {
        ("equal depth, 6 against 6", "vitbnffn"),
        ("equal depth, 6 against 6", "vitbn"),
        ("published configuration, ViT 6 against 1", "vitbnffn"),
        ("published configuration, ViT 6 against 1", "vitbn"),
        ("control, ViT 6 against ViT 1", "vit"),
    }
    for (configuration, model), row in rows.items():
        shallower = 1 if configuration.startswith("equal") else 6
        assert row["depth"] == 6 / shallower
        assert row["r_t"] == pytest.approx((1 if model == "vit" else 1.25) * shallower)
        assert row["r_v"] == pytest.approx((0.5 if model == "vitbn" else 1) * shallower)
    page = markdown(result, [])
    assert page.count("published configuration, ViT 6 against 1") == 2


def numbers(page, title):
    lines = page.split(f"**{title}**\n\n")[1].split("\n\n")[0].splitlines()
    return [[part.strip() for part in line.strip("|").split("|")] for line in [lines[0], *lines[2:]]]


def test_table_shows_what_the_json_holds(result):
    page = markdown(result, [])
    assert len(result["tables"]) == 2
    for entry in json.loads(json.dumps(result["tables"])):
        header, *rows = numbers(page, entry["title"])
        assert header == [column["name"] for column in entry["columns"]]
        assert len(rows) == len(entry["rows"])
        for shown, row in zip(rows, entry["rows"], strict=True):
            for text, value, column in zip(shown, row, entry["columns"], strict=True):
                if isinstance(value, str):
                    assert text == value
                else:
                    unit_of_last_place = 10.0 ** -(column["decimals"] if column["decimals"] is not None else 9)
                    assert float(text.replace(",", "")) == pytest.approx(value, abs=0.51 * unit_of_last_place)


def test_runs_table_is_of_the_last_epoch(result):
    row = result["tables"][1]["rows"][0]
    assert row == [
        "vit",
        6,
        0.0005,
        100,
        0,
        2 / 3,
        pytest.approx(96.0),
        pytest.approx(7.5, rel=0.01),
        pytest.approx(0.6),
    ]


@pytest.mark.parametrize(
    ("value", "decimals", "text"), [(None, 2, "-"), (1234.5, 1, "1,234.5"), (0.0005, None, "0.0005"), ("x", None, "x")]
)
def test_cells(value, decimals, text):
    assert cell(value, decimals) == text


def test_a_reduced_study_says_so_everywhere(result):
    missing = "3 of 30 epochs"
    assert result["scope"]["reduced"].startswith(missing)
    assert f"**Not the whole study, {missing}" in markdown(result, [])
    assert results.footnote(result).startswith(f"NOT THE WHOLE STUDY: {missing}")


def test_a_whole_study_does_not():
    assert in_words(Extent(30, 60_000, 10_000), Extent(30, 60_000, 10_000)) == ""
    assert in_words(Extent(2, 500, 10_000), Extent(30, 60_000, 10_000)) == (
        "2 of 30 epochs, 500 of 60,000 training images"
    )


def test_more_images_than_there_are():
    with pytest.raises(StudyError, match="digits: expected at most 1438 images, found 1439"):
        dnn.STUDY.scope(load_digits(), "cpu", quick=False, train_images=1439)


def test_plots_show_every_line(result):
    plots = learning_rates.plots(result)
    assert set(plots) == {"training-loss", "test-accuracy", "training-time", "test-time", "gains"}
    for name in ("training-loss", "test-accuracy", "training-time", "test-time"):
        panels = plots[name].axes
        assert [axes.get_title() for axes in panels] == [f"learning rate {lr}" for lr in learning_rates.RATES]
        for axes in panels:
            assert axes.get_xlabel() == "epoch"
            assert [line.get_label() for line in axes.lines] == ["ViT", "ViTBNFFN", "ViTBN"]
            assert [len(line.get_xdata()) for line in axes.lines] == [3, 3, 3]
    assert plots["training-time"].axes[0].get_ylabel() == "time (s)"
    accuracies = plots["test-accuracy"].axes[0].lines[0].get_ydata()
    np.testing.assert_allclose(accuracies, [92, 94, 96])


def test_plots_of_gains_name_both_configurations(result):
    (axes,) = learning_rates.plots(result)["gains"].axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert len(labels) == 5
    assert "equal depth, 6 against 6" in labels[0]
    assert "published configuration, ViT 6 against 1" in labels[2]
    assert "control, ViT 6 against ViT 1" in labels[4]
    assert "20.0 %" in [text.get_text() for text in axes.texts]  # 1 - 1 / 1.25


def pixels_of(png, model):
    with Image.open(io.BytesIO(png)) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape[0] >= 500
    assert pixels.shape[1] >= 1000
    colour = [int(figures.STYLES[model][0][i : i + 2], 16) for i in (1, 3, 5)]
    return int((pixels == colour).all(axis=2).sum())


@pytest.mark.slow
def test_written_files(tmp_path, result):
    paths = results.write(tmp_path, result, learning_rates.plots)
    assert {path.name for path in paths} == {path.name for path in tmp_path.iterdir()}
    assert json.loads((tmp_path / "learning-rates.json").read_text()) == json.loads(json.dumps(result))
    page = (tmp_path / "learning-rates.md").read_text()
    pictures = sorted(tmp_path.glob("*.png"))
    assert len(pictures) == 5
    for picture in pictures:
        assert f"({picture.name})" in page
        for model in ("vit",) if "gains" in picture.name else ("vit", "vitbnffn", "vitbn"):
            assert pixels_of(picture.read_bytes(), model) > 100
    blank = figures.png(figures.row_of_panels("", "", [""], "", "")[0])
    assert pixels_of(blank, "vitbn") == 0


def test_a_failed_write_leaves_no_part(tmp_path, result, monkeypatch):
    def broken(figure):
        raise OSError("no space left")

    monkeypatch.setattr(results, "png", broken)
    with pytest.raises(OSError, match="no space left"):
        results.write(tmp_path, result, learning_rates.plots)
    assert list(tmp_path.iterdir()) == []


def test_parameters_take_the_form_of_the_study_unless_they_name_theirs(tmp_path, scope):
    path, plain = tmp_path / "parameters.json", replace(scope, form="plain")
    for named, form in (({}, "plain"), ({"form": "served"}, "served")):
        path.write_text(json.dumps({"dataset": "digits", "batch_size": 50, "lr": 0.01} | named))
        assert optimised.read(path, plain).options.form == frontier.recipe(path, plain).form == form


def test_times_of_reinforced_runs_say_what_they_include(scope):
    usual = trained("vit", [1], [1])
    other = replace(usual, run=replace(usual.run, options=replace(OPTIONS, teacher="t", reinforced="folder")))
    for ended, text in ((usual, results.TIMING), (other, results.REINFORCED)):
        assert assemble("s", "?", "c", scope, {}, [ended])["timing"].startswith(text)


def test_depths_sets_each_pair_side_by_side(scope, monkeypatch):
    monkeypatch.setattr(depths, "_plain_accuracy", lambda one, scope: 0.5)
    runs = [
        trained(model, [depth * (2 if model == "vit" else 1)] * 3, [1] * 3, depth, lr)
        for lr in depths.RATES
        for depth in depths.DEPTHS
        for model in depths.MODELS
    ]
    found = depths.findings(runs, scope)
    assert [(row["lr"], row["depth"]) for row in found["derived"]] == [
        *((0.005, depth) for depth in (2, 3, 4, 5, 6, 7)),
        *((0.003, depth) for depth in (2, 3, 4, 5, 6, 7)),
    ]
    assert all(row["r_t"] == 2.0 for row in found["derived"])
    result = found | {"scope": scope.as_json(), "timing": "", "environment": MACHINE}
    left, right = depths.plots(result)["training-time"].axes
    np.testing.assert_allclose(left.lines[0].get_ydata(), [4, 6, 8, 10, 12, 14])
    np.testing.assert_allclose(right.lines[1].get_xdata(), [2, 3, 4, 5, 6, 7])


def test_table_keeps_numbers_unrounded():
    entry = table("t", [Column("a", 1)], [[0.123456789]])
    assert entry["rows"] == [[0.123456789]]
