"""The command of the studies on a few digits, and its refusals."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import models.study as module
from models import catalog
from models.checkpoint import load, save
from models.config import ModelConfig
from models.data import MNIST_PARTS, load_emnist_part
from models.registry import build, randomise_norms
from models.studies import depths, frontier, norm_choice, shift
from models.study import study

ROOT = Path(__file__).resolve().parents[2]
RECIPE = {"dataset": "mnist", "batch_size": 50, "lr": 0.01, "schedule": "one-cycle", "hold_out": 5000}
SERIES = {"epoch", "training_time_s", "test_time_s", "training_loss", "test_accuracy", "class_accuracy"}


def run(*arguments):
    return CliRunner().invoke(study, [str(argument) for argument in arguments])


def carried_out(command, mnist, output, *arguments, name=None):
    """The JSON of a successful study, after common checks; named after the command."""
    name = name or command
    result = run(command, "--data-dir", mnist, "--output", output, "--device", "cpu", *arguments)
    assert result.exit_code == 0, result.output
    written = json.loads((output / f"{name}.json").read_text())
    assert written["study"] == name
    assert written["question"]
    assert written["timing"].startswith("Times exclude data loading: the images are on the device beforehand.")
    assert written["environment"]["packages"]["torch"]
    assert str(output) not in json.dumps(written)
    assert str(mnist) not in json.dumps(written)
    page = (output / f"{name}.md").read_text()
    pictures = sorted(path.name for path in output.glob("*.png"))
    assert pictures
    assert all(f"![{picture}]({picture})" in page for picture in pictures)
    assert written["command"] in page
    return written


def failure(*arguments):
    """Exit code and single line of a failed command."""
    result = run(*arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    (line,) = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert result.output.endswith(line + "\n")
    return line, result.exit_code


def shipped(folder, *configs, **metrics):
    """A recipe and a checkpoint of each architecture."""
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps(RECIPE))
    for config in configs:
        described = {"dataset": "mnist", "test_accuracy": 0.5, "test_images": 40, "epochs": 7, "command": "none"}
        path = folder / f"{frontier.label(config)}.safetensors"
        model = build(config).eval()
        randomise_norms(model)
        save(path, model, config, described | metrics)
    return folder


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
    monkeypatch.setattr(depths, "DEPTHS", (1, 2))
    written = carried_out("depths", small_mnist, tmp_path, "--epochs", 1, "--train-images", 10, "--seeds", 2)
    assert {(one["options"]["augment"], one["options"]["augment_test"]) for one in written["runs"]} == {("study", True)}
    assert [(row["lr"], row["depth"]) for row in written["derived"]] == [(0.005, 1), (0.005, 2), (0.003, 1), (0.003, 2)]
    (gains, spread) = written["tables"]
    assert (len(gains["rows"]), len(spread["rows"])) == (4, 8)
    last = [one["series"][-1]["test_accuracy"] for one in written["runs"]]
    assert written["derived"][0]["vit"]["distorted_test_accuracy"] == pytest.approx((last[0] + last[2]) / 2)
    assert spread["rows"][0][-2:] == pytest.approx([100 * min(last[0], last[2]), 100 * max(last[0], last[2])])
    for row in written["derived"]:
        for model in ("vit", "vitbnffn"):
            assert 0 <= row[model]["distorted_test_accuracy"] <= 1


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
        ('{"dataset": "digits", "batch_size": 50, "lr": 0.01}', "expected a recipe for mnist, found one for digits"),
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
    """A file of the search."""
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
        ({"dataset": "digits"}, "expected parameters for mnist, found those for digits"),
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


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A ViTBN of depth 1 and a CNN, untrained."""
    folder = tmp_path_factory.mktemp("checkpoints") / "shipped"
    return shipped(folder, ModelConfig(depth=1), ModelConfig(model="cnn"))


def test_shift_without_emnist_says_so(small_mnist, checkpoints, tmp_path, monkeypatch):
    monkeypatch.delenv("EMNIST_DIR", raising=False)
    monkeypatch.setattr(shift, "QUICK_IMAGES", 50)
    written = carried_out("shift", small_mnist, tmp_path / "out", "--checkpoints", checkpoints, "--quick")
    assert written["scope"]["images"] == {"mnist": 40, "digits": 50}
    assert written["notes"] == ["EMNIST digits: not measured: no EMNIST files in --emnist-dir or EMNIST_DIR."]
    by_model = {row["model"]: row for row in written["derived"]}
    assert all(len(row["sets"]["mnist"]["times_s"]) == 3 for row in written["derived"])
    columns = [column["name"] for column in written["tables"][0]["columns"]]
    assert "ms per 1,000 images of MNIST" in columns
    relative = {row[1]: row[-1] for row in written["tables"][0]["rows"]}
    assert relative["cnn"] == 1.0
    times = {model: statistics.median(row["sets"]["mnist"]["times_s"]) for model, row in by_model.items()}
    assert relative["vitbn"] == pytest.approx(times["vitbn"] / times["cnn"])


def test_shift_sets_networks_with_a_teacher_apart(small_mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(shift, "QUICK_IMAGES", 20)
    folder = shipped(tmp_path / "shipped", ModelConfig(depth=1))
    taught = shipped(tmp_path / "taught", ModelConfig(model="cnn"), options={"teacher": "a network"})
    (taught / "cnn.safetensors").rename(folder / "cnn.safetensors")
    written = carried_out("shift", small_mnist, tmp_path / "out", "--checkpoints", folder, "--quick")
    assert [[row[1] for row in entry["rows"]] for entry in written["tables"]] == [["vitbn"], ["cnn"]]
    assert ["without a teacher" in entry["title"] for entry in written["tables"]] == [True, False]


@pytest.mark.slow
def test_shift_on_emnist_reads_it_upright(small_mnist, small_emnist, checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr(shift, "QUICK_IMAGES", 50)
    arguments = ["--checkpoints", checkpoints, "--quick", "--emnist-dir", small_emnist]
    written = carried_out("shift", small_mnist, tmp_path / "out", *arguments)
    assert written["notes"] == []
    assert str(small_emnist) not in json.dumps(written)
    for row in written["derived"]:  # the same images, once turned
        assert row["sets"]["emnist-digits"]["accuracy"] == row["sets"]["mnist"]["accuracy"]
    page = (tmp_path / "out/shift.md").read_text()
    assert "ms per 1,000 images of EMNIST digits" in page


def test_small_emnist_would_show_a_missing_turn(small_emnist):
    images, _ = load_emnist_part(small_emnist, "test")
    assert np.mean(images != images.swapaxes(2, 3)) > 0.1


def test_all_of_the_digits_are_asked_about():
    mnist = (np.zeros((2, 1, 28, 28), np.uint8), np.zeros(2, np.int64))
    sets = shift.image_sets(mnist, None, quick=False)
    assert {name: len(labels) for name, (_, labels) in sets.items()} == {"mnist": 2, "digits": 1797}


@pytest.mark.parametrize("damage", ["truncated", "magic"])
def test_shift_with_damaged_emnist(small_mnist, small_emnist, checkpoints, tmp_path, damage):
    for path in small_emnist.iterdir():
        content = path.read_bytes()
        if "images" in path.name:
            content = content[:-1] if damage == "truncated" else b"\x00\x00\x0d" + content[3:]
        (tmp_path / path.name).write_bytes(content)
    common = ["--data-dir", small_mnist, "--output", tmp_path / "out", "--checkpoints", checkpoints]
    message, exit_code = failure("shift", *common, "--emnist-dir", tmp_path)
    assert (exit_code, "emnist-digits-test-images-idx3-ubyte: expected" in message) == (1, True)
    assert not (tmp_path / "out").exists()


def test_shift_with_a_folder_that_is_not_there(small_mnist, checkpoints, tmp_path):
    common = ["--data-dir", small_mnist, "--output", tmp_path / "out"]
    message, _ = failure("shift", *common, "--checkpoints", checkpoints, "--emnist-dir", tmp_path / "none")
    assert f"{tmp_path / 'none'}: expected a folder with the idx files of EMNIST's digits, found none" in message
    message, _ = failure("shift", *common, "--checkpoints", tmp_path / "none")
    assert f"{tmp_path / 'none'}: expected checkpoints, found none" in message


def test_shift_of_a_checkpoint_of_other_images(small_mnist, tmp_path):
    folder = shipped(tmp_path / "shipped", ModelConfig(depth=1), dataset="digits")
    common = ["--data-dir", small_mnist, "--output", tmp_path / "out", "--checkpoints", folder]
    assert "expected a checkpoint trained on mnist, found digits" in failure("shift", *common)[0]


def copy_of(mnist, folder, part, change):
    """A folder like `mnist`, one of its files changed."""
    folder.mkdir()
    for path in mnist.iterdir():
        content = path.read_bytes()
        (folder / path.name).write_bytes(change(content) if path.name in MNIST_PARTS[part] else content)
    return folder


@pytest.mark.parametrize("name", ["learning-rates", "depths", "dnn", "frontier", "optimised", "shift"])
def test_folder_without_mnist(tmp_path, checkpoints, name):
    arguments = ["--checkpoints", checkpoints] if name in ("frontier", "shift") else []
    arguments += ["--params", tmp_path / "searches"] if name == "optimised" else []
    message, exit_code = failure(name, "--data-dir", tmp_path / "none", "--output", tmp_path / "out", *arguments)
    assert (exit_code, f"{tmp_path / 'none'}: expected train-images" in message) == (1, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content[:-1], "bytes for (40, 28, 28), found"),
        (lambda content: b"\x00\x00\x0d" + content[3:], "expected the idx magic"),
    ],
    ids=["truncated", "magic"],
)
def test_damaged_mnist(small_mnist, tmp_path, change, said):
    folder = copy_of(small_mnist, tmp_path / "damaged", "test images", change)
    message, exit_code = failure("dnn", "--data-dir", folder, "--output", tmp_path / "out")
    assert (exit_code, said in message, "t10k-images" in message) == (1, True, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_folder_of_another_study(small_mnist, tmp_path):
    carried_out("dnn", small_mnist, tmp_path / "out", "--epochs", 1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    common = ["--data-dir", small_mnist, "--output", tmp_path / "out"]
    message, exit_code = failure("learning-rates", *common, "--epochs", 1)
    assert (exit_code, "expected study learning-rates, found dnn; name another --output" in message) == (1, True)
    message, _ = failure("dnn", *common, "--epochs", 1, "--train-images", 60)
    assert "expected train images 60, found 120" in message
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--epochs", 0], 2, "--epochs"),
        (["--train-images", 1], 2, "--train-images"),
        (["--train-images", 121], 1, "mnist: expected at most 120 images, found 121"),
        (["--device", "abacus"], 2, "--device"),
    ],
)
def test_values_that_are_none(small_mnist, tmp_path, arguments, code, said):
    message, exit_code = failure("dnn", "--data-dir", small_mnist, "--output", tmp_path / "out", *arguments)
    assert (exit_code, said in message) == (code, True)
    assert list(tmp_path.iterdir()) == []


def test_output_that_is_a_file(small_mnist, tmp_path):
    (tmp_path / "file").write_text("")
    message, exit_code = failure("dnn", "--data-dir", small_mnist, "--output", tmp_path / "file")
    assert (exit_code, str(tmp_path / "file") in message) == (1, True)


def test_shipped_folder_is_the_default():
    assert module.PRETRAINED == catalog.PRETRAINED


def test_help_needs_no_torch():
    program = "import sys, models.study; sys.exit(bool({'torch', 'matplotlib', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
