import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from study_runs import rows_of

from benchmarks.studies import study_report, study_writer
from benchmarks.studies.grids import STUDIES
from benchmarks.studies.study_runs import images_and_scope, result_of, runs
from models.data import load_digits


def planned(name, chosen=None, **options):
    """The runs and the scope of the quick study."""
    study = STUDIES[name]
    data, scope = images_and_scope(study, load_digits(), quick=True, **options)
    return runs(study, data, scope, {"device": "cpu"}, chosen), scope


def trained(run, training_s=1.0, test_s=0.1, epochs=None):
    names = ("epoch", "training_time_s", "test_time_s", "training_loss", "test_accuracy")
    ended = run.options.epochs if epochs is None else epochs
    series = [
        dict(zip(names, (n, training_s, test_s, 2.0 / n, 0.9 + 0.02 * n), strict=True)) for n in range(1, ended + 1)
    ]
    fields = {"config": asdict(run.config), "options": asdict(run.options)}
    held_out = {"test_accuracy": 0.5} if run.options.hold_out else {}
    return {"label": run.label, "at": dict(run.at), **fields, **held_out, "series": series}


def result_with(name, ended, **options):
    return result_of(name, STUDIES[name], planned(name, **options)[1], "the command", ended)


@pytest.fixture(scope="module")
def result():
    """ViT's block takes a quarter more; depth multiplies."""
    every, _ = planned("learning-rates")
    times = [run.config.depth * (1.25 if run.config.model == "vit" else 1.0) for run in every]
    return result_with("learning-rates", [trained(run, time) for run, time in zip(every, times, strict=True)])


def test_every_study_is_a_grid():
    for name in STUDIES.keys() - {"optimised"}:  # it takes fields from files
        every, axes = planned(name, seeds=2)[0], STUDIES[name].axes
        assert len({run.label for run in every}) == len(every) == 2 * np.prod([len(axis) for axis in axes.values()])
        assert all(set(run.at) == set(axes) for run in every)


def test_the_studies_have_the_published_settings():
    (first, *_), last = (planned(name)[0] for name in ("learning-rates", "depths"))
    assert (first.label, first.config.dim, first.config.heads, first.config.dim_head) == (
        "vit-depth-6-rate-0.0005", 64, 8, 64,
    )  # fmt: skip
    assert (first.options.batch_size, first.options.lr, first.options.schedule) == (100, 0.0005, "constant")
    assert (first.options.augment, first.config.dropout) == ("none", 0)
    assert last[-1].label == "vitbnffn-depth-7-rate-0.003"
    assert {(run.options.augment, run.options.augment_test) for run in last} == {("study", True)}
    every, _ = planned("six-blocks")
    assert ({run.config.depth for run in every}, len({run.options for run in every})) == ({6}, 1), "one recipe for all"


def test_choices_leave_the_others_out_and_keep_the_order():
    chosen = {"rate": ("0.003",), "depth": ("4", "2", "4")}
    every, _ = planned("depths", chosen, seeds=2)
    labels = [f"{model}-depth-{depth}-rate-0.003" for depth in (2, 4) for model in ("vit", "vitbnffn")]
    assert [run.label for run in every] == [*labels, *(f"{label}-seed-1" for label in labels)]


def test_held_out_images_are_at_most_a_twelfth():
    (run, *_), _ = planned("designed")
    assert (run.options.hold_out, run.options.teacher) == (100, "models/pretrained/cnn.safetensors")
    (row,) = study_report.summary(result_with("designed", [trained(run)])).rows
    assert list(row.items())[3:5] == [("held-out images right %", "94.00"), ("test images right %", "50.00")]


def test_times_compare_with_the_reference_at_both_readings_of_the_depth(result):
    for row in study_report.summary(result).rows:
        shallower = 1 if row["depth"] == "6" else 6
        faster = 1 if row["model"] == "vit" else 1.25
        assert row["reference's training time over it"] == f"{faster * shallower:.2f}"
        assert row["reference's test time over it"] == "1.00"


def test_seeds_share_a_row_with_their_range():
    (first, second), _ = planned("dnn", {"rate": ("0.01",), "model": ("dnn",)}, seeds=2)
    ended = [trained(first, 1.0), trained(second, 3.0)]
    ended[1]["series"][-1]["test_accuracy"] = 0.5
    (row,) = study_report.summary(result_with("dnn", ended, seeds=2)).rows
    assert list(row.values())[:3] == ["0.01", "dnn", "2"]
    assert list(row.values())[4:6] == ["85.00 (50.00 to 120.00)", "68.0"]
    assert row["training an epoch, s"] == "2.00"
    (row,) = study_report.summary(result_with("dnn", [trained(first), trained(second, epochs=3)], seeds=2)).rows
    assert list(row.values())[2:5] == ["2", "1", "120.00"], "a diverged seed has no accuracy"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "every"),
    [("depths", True), ("depths", False), ("learning-rates", False), ("six-blocks", False)],
)
def test_runs_that_diverge_in_their_first_epoch_leave_empty_cells(name, every, tmp_path):
    ended = [trained(run, epochs=0 if every or number == 0 else None) for number, run in enumerate(planned(name)[0])]
    study_report.write(tmp_path, result_with(name, ended))
    first, *others = rows_of(tmp_path, name)
    assert (first["diverged"], first["test images right %"], first["test, s"]) == ("1", "-", "-")
    assert all((row["test images right %"] == "-") == every for row in others)


def test_the_page_comes_from_the_json(tmp_path, result):
    paths = study_report.write(tmp_path, result)
    assert {path.name for path in paths} == {path.name for path in tmp_path.iterdir()}
    written = json.loads((tmp_path / "learning-rates.json").read_text())
    assert written == json.loads(json.dumps(result))
    before = {path.name: path.read_bytes() for path in paths}
    study_report.write(tmp_path, written)
    assert {path.name: path.read_bytes() for path in paths} == before
    shown = rows_of(tmp_path, "learning-rates")
    assert len(shown) == 18
    assert [row["training an epoch, s"] for row in shown[:3]] == ["7.50", "6.00", "6.00"]
    text = (tmp_path / "learning-rates.md").read_text()
    assert "**Not the whole study, 3 of 30 epochs" in text
    assert "Reference: depth 6, model vit.**" in text
    assert study_writer.footnote(result).startswith("NOT THE WHOLE STUDY: 3 of 30 epochs")


def test_pictures_show_every_line(result):
    drawn = study_report.pictures(result)
    assert list(drawn) == ["accuracy", "loss"]
    assert list(drawn["accuracy"].panels) == ["rate 0.0005", "rate 0.005", "rate 0.01"]
    labels = [f"{name}, depth {depth}" for depth in (6, 1) for name in ("ViT", "ViTBNFFN", "ViTBN")]
    for panel in drawn["accuracy"].panels.values():
        assert [line.label for line in panel] == labels
        np.testing.assert_allclose(panel[0].ys, [92, 94, 96])
    axes = drawn["accuracy"].draw().axes
    assert [one.get_title() for one in axes] == list(drawn["accuracy"].panels)
    assert {"ViT, depth 6", "ViTBN, depth 1"} <= set(axes[0].get_legend_handles_labels()[1])


def test_depths_are_drawn_along_the_depth():
    ended = [trained(run, epochs=1 if run.label == "vit-depth-3-rate-0.003" else None) for run in planned("depths")[0]]
    (picture,) = study_report.pictures(result_with("depths", ended)).values()
    vit, vitbnffn = picture.panels["rate 0.003"]
    assert (vit.xs, vitbnffn.xs) == ([1, 2, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7])


def test_times_of_cached_runs_say_what_they_include():
    (run, *_), _ = planned("six-blocks")
    other = replace(run, options=replace(run.options, teacher_cache="folder"))
    assert result_with("six-blocks", [trained(run)])["timing"].startswith(study_writer.TIMING)
    assert result_with("six-blocks", [trained(other)])["timing"].startswith(study_writer.WITH_TEACHER_CACHE)


def test_a_failed_write_leaves_no_part(tmp_path, result, monkeypatch):
    def broken(figure):
        raise OSError("no space left")

    monkeypatch.setattr(study_writer, "png", broken)
    with pytest.raises(OSError, match="no space left"):
        study_report.write(tmp_path, result)
    assert list(tmp_path.iterdir()) == []
