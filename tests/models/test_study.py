import json
from statistics import mean, stdev

import pytest
from studying import carried_out, failure, run, shipped

import models.study as module
from models.checkpoint import load
from models.studies import depths, frontier, norm_choice

SERIES = {"epoch", "training_time_s", "test_time_s", "training_loss", "test_accuracy", "class_accuracy"}


@pytest.mark.slow
def test_learning_rates(small_mnist, tmp_path):
    sizes = ("--epochs", 2, "--train-images", 20)
    name = "learning-rates-0.005"
    written = carried_out(
        "learning-rates", small_mnist, tmp_path, "--rate", 0.005, "--form", "plain", *sizes, name=name
    )
    typed = "python models/study.py learning-rates --rate 0.005 --form plain --epochs 2 --train-images 20 --output DIR"
    assert written["command"] == typed
    assert written["scope"] == {
        "dataset": "mnist",
        "train_images": 20,
        "test_images": 40,
        "test_batch": 5000,
        "epochs": 2,
        "form": "plain",
        "seeds": 1,
        "reduced": "2 of 30 epochs, 20 of 120 training images",
    }
    assert not written["quick"]
    assert [(one["config"]["model"], one["config"]["depth"]) for one in written["runs"]] == [
        ("vit", 6),
        ("vitbnffn", 6),
        ("vitbn", 6),
        ("vit", 1),
        ("vitbnffn", 1),
        ("vitbn", 1),
    ]
    for one in written["runs"]:
        assert (one["options"]["seed"], one["options"]["batch_size"], one["options"]["augment"]) == (0, 100, "none")
        assert one["options"]["form"] == "plain"
        assert [set(epoch) for epoch in one["series"]] == [SERIES] * 2
    assert {path.name for path in (tmp_path / "runs").glob("vitbn-depth-1*")} == {
        f"vitbn-depth-1-lr-0.005{suffix}" for suffix in (".safetensors", ".json", ".resume.pt")
    }


@pytest.mark.slow
def test_norms(small_mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(norm_choice, "DEPTH", 1)
    monkeypatch.setitem(norm_choice.WAYS, "high", {"lr": 1e30})
    written = carried_out("norms", small_mnist, tmp_path, "--epochs", 1, "--train-images", 20)
    assert written["command"] == "python models/study.py norms --epochs 1 --train-images 20 --output DIR"
    rows = {row["model"]: row for row in written["derived"]}
    assert list(rows) == [*norm_choice.BY_TOKEN, *norm_choice.FOLDING]
    assert [name for name, row in rows.items() if not row["folds"]] == ["vit", "vit-dtn", "vit-minmax", "vit-zscore"]
    recipes = [one["options"] for one in written["runs"] if one["label"].endswith("-recipe")]
    assert [(options["schedule"], options["clip"], options["lr"]) for options in recipes] == [
        ("one-cycle", 1, 0.001)
    ] * 9
    assert rows["vit"]["of_layer_norm"] == 1
    assert all(0 <= row["usual"]["test_accuracy"] <= 1 for row in rows.values())
    assert rows["vit-un"]["high"] == {"test_accuracy": None, "range": None, "largest_fall": None}
    diverged, *against = written["notes"]
    assert "vit-un-high" in diverged
    ends = [rows[model]["recipe"]["test_accuracy"] for model in ("vit-repbn", "vitbn")]
    assert f"RepBN {100 * (ends[0] - ends[1]):+.2f}, progressive" in against[-1]


@pytest.mark.slow
def test_norms_of_one_way_grow_by_seeds_and_norms(small_mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(norm_choice, "DEPTH", 1)
    sizes = ("--epochs", 1, "--train-images", 20, "--way", "recipe", "--norm", "vit-repbn", "--norm", "vitbn")
    name = "norms-recipe"
    carried_out("norms", small_mnist, tmp_path, *sizes, name=name)
    written = carried_out("norms", small_mnist, tmp_path, *sizes, "--norm", "vit", "--seeds", 2, name=name)
    typed = "--epochs 1 --train-images 20 --way recipe --norm vit-repbn --norm vitbn --norm vit --seeds 2 --output DIR"
    assert written["command"] == f"python models/study.py norms {typed}"
    assert [one["label"] for one in written["runs"]] == [
        *("vit-recipe", "vitbn-recipe", "vit-repbn-recipe"),
        *("vit-recipe-seed-1", "vitbn-recipe-seed-1", "vit-repbn-recipe-seed-1"),
    ]
    last = {one["label"]: one["series"][-1]["test_accuracy"] for one in written["runs"]}
    (vit, vitbn, _) = written["derived"]
    assert vitbn["recipe"]["test_accuracy"] == (last["vitbn-recipe"] + last["vitbn-recipe-seed-1"]) / 2
    assert (vit["of_layer_norm"], "usual" in vit) == (1, False)
    assert written["notes"][-1].startswith("Not run: dynamic token norm, min-max of a token,")
    page = (tmp_path / f"{name}.md").read_text()
    assert "Trained and timed in the served form." in page
    message, _ = failure("norms", "--data-dir", small_mnist, "--output", tmp_path, *sizes)
    assert message.endswith("; name another --output")


@pytest.mark.slow
def test_depths(small_mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(depths, "DEPTHS", (1, 2, 3))
    written = carried_out("depths", small_mnist, tmp_path, "--epochs", 1, "--train-images", 10, "--seeds", 2)
    assert {(one["options"]["augment"], one["options"]["augment_test"]) for one in written["runs"]} == {("study", True)}
    pairs = [(lr, depth) for lr in (0.005, 0.003) for depth in (1, 2, 3)]
    assert [(row["lr"], row["depth"]) for row in written["derived"]] == pairs
    (gains, spread) = written["tables"]
    assert (len(gains["rows"]), len(spread["rows"])) == (6, 12)
    last = [one["series"][-1]["test_accuracy"] for one in written["runs"]]
    assert written["derived"][0]["vit"]["distorted_test_accuracy"] == pytest.approx((last[0] + last[2]) / 2)
    assert spread["rows"][0][-2:] == pytest.approx([100 * min(last[0], last[2]), 100 * max(last[0], last[2])])
    for row in written["derived"]:
        for model in ("vit", "vitbnffn"):
            assert 0 <= row[model]["distorted_test_accuracy"] <= 1


@pytest.mark.parametrize(
    ("rates", "all_images", "name"),
    [(depths.RATES, True, "depths"), ((0.005,), False, "depths-0.005"), ((0.003,), True, "depths-0.003-all-images")],
)
def test_a_part_of_depths_has_its_own_name(rates, all_images, name):
    assert depths.study(rates, (6,), all_images).name == name


@pytest.mark.slow
def test_dnn_resumes_after_ctrl_c(small_mnist, tmp_path, monkeypatch):
    carried_out("dnn", small_mnist, tmp_path / "whole", "--epochs", 2)
    printed = []

    def interrupted(run, epoch):
        printed.append(epoch)
        if len(printed) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "_print", interrupted)
        result = run("dnn", "--data-dir", small_mnist, "--output", tmp_path / "broken", "--epochs", 2)
    assert (result.exit_code, "Interrupted: finished epochs are kept" in result.output) == (130, True)
    assert not (tmp_path / "broken/dnn.json").exists()
    carried_out("dnn", small_mnist, tmp_path / "broken", "--epochs", 2)
    runs = [json.loads((tmp_path / name / "dnn.json").read_text())["runs"] for name in ("whole", "broken")]
    for one in (one for side in runs for one in side):
        for epoch in one["series"]:
            del epoch["training_time_s"], epoch["test_time_s"]
    assert runs[0] == runs[1]


@pytest.mark.slow
def test_quick_is_marked(small_mnist, tmp_path):
    written = carried_out("dnn", small_mnist, tmp_path, "--quick", "--epochs", 1)
    assert written["quick"]
    assert written["command"] == "python models/study.py dnn --quick --epochs 1 --output DIR"


@pytest.mark.slow
def test_designed_networks_share_their_epochs(small_mnist, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    networks = ["--network", "wide", "--network", "late-deep"]
    arguments = [*networks, "--seeds", 2, "--epochs", 2, "--reinforced", "epochs"]
    written = carried_out("designed", small_mnist, tmp_path / "out", *arguments)
    assert len(list((tmp_path / "epochs").glob("epoch-*"))) == 2
    assert [run["label"] for run in written["runs"]] == ["wide", "wide-seed-1", "late-deep"]
    wide, deep = written["tables"][0]["rows"]
    ends = [100 * row["test_accuracy"] for row in written["derived"][:2]]
    assert wide == ["wide", 2, 2, wide[3], ", ".join(f"{end:.2f}" for end in ends), mean(ends), stdev(ends)]
    end = 100 * written["derived"][2]["test_accuracy"]
    assert deep == ["late-deep", 1, 2, deep[3], f"{end:.2f}", end, None]
    assert written["runs"][2]["config"]["late_cls"] == [32, 16]


@pytest.mark.slow
def test_networks_of_six_blocks_share_the_recipe(small_mnist, tmp_path):
    written = carried_out("six-blocks", small_mnist, tmp_path / "out", "--epochs", 1)
    names = ["vit", "vitbnffn", "vitbn", "vitbn-late"]
    assert [run["label"] for run in written["runs"]] == [row[0] for row in written["tables"][0]["rows"]] == names
    assert len({json.dumps(run["options"]) for run in written["runs"]}) == 1


@pytest.mark.slow
def test_frontier_takes_what_is_shipped(small_mnist, tmp_path):
    folder = shipped(tmp_path / "shipped", *frontier.NETWORKS[1:])
    written = carried_out("frontier", small_mnist, tmp_path / "out", "--checkpoints", folder, "--epochs", 1)
    assert [(row["model"], row["depth"], row["source"]) for row in written["derived"]] == [
        ("vitbn", 1, "trained here"),
        *(("vitbn", depth, "shipped") for depth in (2, 3, 4, 6)),
        ("cnn", None, "shipped"),
    ]
    assert [one["label"] for one in written["runs"]] == ["vitbn-depth-1"]
    assert written["runs"][0]["options"]["hold_out"] == 10  # a twelfth
    assert [row["macs"] for row in written["derived"]][::4] == [2_853_504, 16_866_944]
    trained = load(tmp_path / "out/runs/vitbn-depth-1.safetensors")
    assert written["derived"][0]["test_accuracy"] == trained.metrics["test_accuracy"]
    assert "| cnn | - |" in (tmp_path / "out/frontier.md").read_text()


@pytest.mark.parametrize("arguments", [["--quick"], ["--train-images", 60]])
def test_a_part_of_the_images_is_not_compared_with_what_is_shipped(small_mnist, tmp_path, arguments, monkeypatch):
    monkeypatch.setattr(frontier, "NETWORKS", frontier.NETWORKS[:1])
    folder = shipped(tmp_path / "shipped", *frontier.NETWORKS)
    small = ["--checkpoints", folder, "--epochs", 1, *arguments]
    written = carried_out("frontier", small_mnist, tmp_path / "out", *small)
    assert [row["source"] for row in written["derived"]] == ["trained here"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("[]", "expected a JSON object of training options"),
        ('{"dataset": "mnist", "batch_size": 50, "lr": 0.01, "colour": 1}', "colour"),
        (
            '{"dataset": "digits", "batch_size": 50, "lr": 0.01}',
            "expected a recipe for mnist, found a recipe for digits",
        ),
    ],
    ids=["none", "list", "unknown", "dataset"],
)
def test_recipe_that_is_none(small_mnist, tmp_path, content, said):
    if content is not None:
        (tmp_path / "recipe.json").write_text(content)
    common = ["frontier", "--data-dir", small_mnist, "--output", tmp_path / "out", "--checkpoints", tmp_path]
    message, exit_code = failure(*common)
    assert (exit_code, said in message, "recipe.json" in message) == (1, True, True)
    assert not (tmp_path / "out").exists()


def best(folder, name="vitbn", **changes):
    found = {"model": name, "dataset": "mnist", "lr": 0.01, "batch_size": 30, "depth": 1, "schedule": "constant"}
    path = folder / f"{name}.best.json"
    path.write_text(json.dumps({key: value for key, value in (found | changes).items() if value is not None}))
    return path


@pytest.mark.slow
def test_optimised_with_files_and_folders(small_mnist, tmp_path):
    folder = tmp_path / "searches"
    folder.mkdir()
    best(folder, "cnn", depth=None)
    arguments = ["--params", best(tmp_path), "--params", best(tmp_path, "vit"), "--params", folder, "--epochs", 1]
    written = carried_out("optimised", small_mnist, tmp_path / "out", *arguments, "--train-images", 60)
    found = [(one["label"], one["config"]["depth"], one["options"]["batch_size"]) for one in written["runs"]]
    assert found == [("vitbn", 1, 30), ("vit", 1, 30), ("cnn", 6, 30)]
    gains, last = written["tables"]
    assert [row[:3] for row in last["rows"]] == [["vitbn", 1, 0.01], ["vit", 1, 0.01], ["cnn", None, 0.01]]
    assert "--params" not in written["command"]
    times_s = {one["label"]: one["series"][0]["training_time_s"] for one in written["runs"]}
    assert [row["model"] for row in written["derived"]] == ["vitbn", "cnn"]
    assert written["derived"][0]["r_t"] == pytest.approx(times_s["vit"] / times_s["vitbn"])
    assert gains["rows"][0][3] == pytest.approx(100 * (1 - times_s["vitbn"] / times_s["vit"]))
    assert len(list((tmp_path / "out").glob("*.png"))) == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dataset": "digits"}, "expected parameters for mnist, found parameters for digits"),
        ({"model": "resnet"}, "resnet"),
        ({"colour": "red"}, "colour"),
        ({"lr": None}, "lr"),
        ({"depth": 0}, "depth: expected an integer of at least 1"),
    ],
)
def test_parameters_that_are_none(small_mnist, tmp_path, changes, said):
    arguments = ["--params", best(tmp_path, **changes), "--data-dir", small_mnist, "--output", tmp_path / "out"]
    message, exit_code = failure("optimised", *arguments)
    assert (exit_code, said in message, "vitbn.best.json" in message) == (1, True, True)
    assert not (tmp_path / "out").exists()


def test_parameters_twice_and_never(small_mnist, tmp_path):
    common = ["optimised", "--data-dir", small_mnist, "--output", tmp_path / "out"]
    path = best(tmp_path)
    message, _ = failure(*common, "--params", path, "--params", path)
    assert "expected another model than in the files before, found vitbn" in message
    (tmp_path / "empty").mkdir()
    message, _ = failure(*common, "--params", tmp_path / "empty")
    assert "expected files *.best.json" in message
