import json
from dataclasses import replace

import pytest
from study_runs import carried_out, failure, rows_of, run

import benchmarks.studies.study as module
from benchmarks.studies.grids import FOLDING, STUDIES
from benchmarks.studies.study_runs import images_and_scope, runs
from models.data import load_digits
from models.networks.config import BY_TOKEN

SERIES = {"epoch", "training_time_s", "test_time_s", "training_loss", "test_accuracy"}
SMALL = ("--epochs", 1, "--train-images", 20)


@pytest.mark.slow
def test_a_study_records_its_command_scope_and_runs(small_mnist, tmp_path):
    sizes = ("--epochs", 2, "--train-images", 20)
    written = carried_out("learning-rates", small_mnist, tmp_path, "--rate", 0.005, "--last-block", "all", *sizes)
    typed = "vitbn study learning-rates --rate 0.005 --epochs 2 --train-images 20 --last-block all --output DIR"
    assert sorted(written["command"].split()) == sorted(typed.split())
    assert written["scope"] == {
        "dataset": "mnist",
        "train_images": 20,
        "test_images": 40,
        "test_batch": 5000,
        "epochs": 2,
        "seeds": 1,
        "reduced": "2 of 30 epochs, 20 of 120 training images",
    }
    models = ("vit", "vitbnffn", "vitbn")
    at = [{"rate": "0.005", "depth": depth, "model": model} for depth in ("6", "1") for model in models]
    assert [one["at"] for one in written["runs"]] == at
    for one in written["runs"]:
        assert (one["config"]["model"], str(one["config"]["depth"])) == (one["at"]["model"], one["at"]["depth"])
        assert (one["options"]["seed"], one["options"]["batch_size"], one["options"]["augment"]) == (0, 100, "none")
        assert one["options"]["last_block"] == "all"
        assert [set(epoch) for epoch in one["series"]] == [SERIES] * 2
    assert {path.name for path in (tmp_path / "runs").glob("vitbn-depth-1*")} == {
        f"vitbn-depth-1-rate-0.005{suffix}" for suffix in (".safetensors", ".json", ".resume.pt")
    }
    assert "Last block, trained and timed: all rows." in (tmp_path / "learning-rates.md").read_text()


@pytest.mark.slow
def test_a_study_compares_with_its_reference_and_counts_diverged_runs(small_mnist, tmp_path, monkeypatch):
    monkeypatch.setitem(STUDIES["norms"].fixed, "depth", 1)
    monkeypatch.setitem(STUDIES["norms"].axes["way"], "high", {"lr": 1e30})
    written = carried_out("norms", small_mnist, tmp_path, *SMALL)
    assert written["command"] == "vitbn study norms --epochs 1 --train-images 20 --output DIR"
    rows = rows_of(tmp_path, "norms")
    assert [row["norm"] for row in rows[:9]] == [*BY_TOKEN, *FOLDING]
    recipes = [one["options"] for one in written["runs"] if one["at"]["way"] == "recipe"]
    assert [(options["schedule"], options["clip"], options["lr"]) for options in recipes] == [
        ("one-cycle", 1, 0.001)
    ] * 9
    assert {row["reference's training time over it"] for row in rows if row["norm"] == "vit"} <= {"1.00", "-"}
    (diverged,) = [row for row in rows if (row["way"], row["norm"]) == ("high", "vit-un")]
    assert (diverged["diverged"], diverged["test images right %"]) == ("1", "-")


@pytest.mark.slow
def test_a_study_grows_by_seeds_and_choices(small_mnist, tmp_path, monkeypatch):
    monkeypatch.setitem(STUDIES["norms"].fixed, "depth", 1)
    sizes = (*SMALL, "--way", "recipe", "--norm", "vit-repbn", "--norm", "vitbn")
    carried_out("norms", small_mnist, tmp_path, *sizes)
    written = carried_out("norms", small_mnist, tmp_path, *sizes, "--norm", "vit", "--seeds", 2)
    assert [one["label"] for one in written["runs"]] == [
        *("vit-recipe", "vitbn-recipe", "vit-repbn-recipe"),
        *("vit-recipe-seed-1", "vitbn-recipe-seed-1", "vit-repbn-recipe-seed-1"),
    ]
    first, second = (100 * written["runs"][place]["series"][-1]["test_accuracy"] for place in (1, 4))
    row = next(row for row in rows_of(tmp_path, "norms") if row["norm"] == "vitbn")
    low, high = sorted((first, second))
    assert row["test images right %"] == f"{(first + second) / 2:.2f} ({low:.2f} to {high:.2f})"
    message, _ = failure("norms", "--data-dir", small_mnist, "--output", tmp_path, *sizes)
    assert message.endswith("; name another --output")


@pytest.mark.slow
def test_ctrl_c_keeps_the_epochs_and_the_same_command_goes_on(small_mnist, tmp_path, monkeypatch):
    printed = []

    def interrupted(run, epoch):
        printed.append(epoch)
        if len(printed) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "_print_epoch", interrupted)
        result = run("dnn", "--data-dir", small_mnist, "--output", tmp_path, "--epochs", 2)
    assert (result.exit_code, "Interrupted: finished epochs are kept" in result.output) == (130, True)
    assert not (tmp_path / "dnn.json").exists()
    written = carried_out("dnn", small_mnist, tmp_path, "--epochs", 2)
    assert [len(one["series"]) for one in written["runs"]] == [2] * 4


@pytest.mark.slow
def test_designed_networks_share_their_epochs(small_mnist, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    networks = ["--network", "wide", "--network", "late-deep"]
    arguments = [*networks, "--seeds", 2, "--epochs", 2, "--train-images", 36, "--teacher-cache", "epochs"]
    written = carried_out("designed", small_mnist, tmp_path / "out", *arguments)
    assert len(list((tmp_path / "epochs").glob("epoch-*"))) == 2
    assert [run["label"] for run in written["runs"]] == ["wide", "late-deep", "wide-seed-1", "late-deep-seed-1"]
    ends = [100 * run["test_accuracy"] for run in written["runs"]]
    wide, deep = rows_of(tmp_path / "out", "designed")
    assert (wide["network"], deep["network"], wide["seeds"]) == ("wide", "late-deep", "2")
    assert wide["test images right %"].startswith(f"{(ends[0] + ends[2]) / 2:.2f} (")
    assert written["runs"][1]["config"]["class_attention"] == [32, 16]
    assert "3 training images are held out" in (tmp_path / "out/designed.md").read_text()


def best(folder, name="vitbn", **changes):
    found = {"model": name, "dataset": "mnist", "lr": 0.01, "batch_size": 30, "depth": 1, "schedule": "constant"}
    path = folder / f"{name}.best.json"
    path.write_text(json.dumps({key: value for key, value in (found | changes).items() if value is not None}))
    return path


@pytest.mark.slow
def test_parameters_of_searches_come_from_files_and_folders(small_mnist, tmp_path):
    folder = tmp_path / "searches"
    folder.mkdir()
    best(folder, "cnn", depth=None)
    arguments = ["--params", best(tmp_path), "--params", best(tmp_path, "vit"), "--params", folder, "--epochs", 1]
    written = carried_out("optimised", small_mnist, tmp_path / "out", *arguments, "--train-images", 60)
    found = [(one["label"], one["config"]["depth"], one["options"]["batch_size"]) for one in written["runs"]]
    assert found == [("vitbn", 1, 30), ("vit", 1, 30), ("cnn", 6, 30)]
    assert "--params" not in written["command"]
    times_s = {one["label"]: one["series"][0]["training_time_s"] for one in written["runs"]}
    ratios = {
        row["network"]: row["reference's training time over it"] for row in rows_of(tmp_path / "out", "optimised")
    }
    assert ratios == {model: f"{times_s['vit'] / times_s[model]:.2f}" for model in ("vitbn", "vit", "cnn")}
    assert len(list((tmp_path / "out").glob("*.png"))) == 2


@pytest.mark.parametrize(("named", "computed"), [({}, "all"), ({"last_block": "row"}, "row")])
def test_parameters_take_the_last_block_of_the_study_unless_they_name_theirs(tmp_path, named, computed):
    path = best(tmp_path, dataset="digits", **named)
    data, scope = images_and_scope(STUDIES["optimised"], load_digits())
    assert scope["reduced"] == ""
    grid = replace(STUDIES["optimised"], axes={"network": module._axis_of_searches([path], STUDIES["optimised"], data)})
    assert [run.options.last_block for run in runs(grid, data, scope, {"last_block": "all"})] == [computed]


def test_list_says_how_long_each_takes():
    ended = run("--list")
    assert ended.exit_code == 0
    lines = {line.split()[0]: line.split() for line in ended.output.splitlines()[1:-2]}
    assert set(lines) == {*module.STUDIES, "layout"}
    assert lines["learning-rates"][1:4] == ["18", "30", "4.8"]
    assert all(float(line[3]) > 0 for line in lines.values())
