import copy
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from models.studies.claims import CLAIMS, ORDER, Size, _hours, page
from models.studies.running import StudyError
from models.study import study

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results/studies"


def load(name):
    return json.loads((RESULTS / name / f"{name}.json").read_bytes())


def verdict(statement, result):
    (claim,) = (claim for claim in CLAIMS if claim.statement.startswith(statement))
    return claim.judge(result).verdict


def test_the_committed_page_is_that_of_the_committed_results():
    assert (ROOT / "docs/claims.md").read_text() == page(RESULTS)


def test_unfavourable_verdicts_come_first():
    shown = [line.split("**")[1] for line in page(RESULTS).splitlines() if line.startswith("| **")]
    assert shown == sorted(shown, key=ORDER.index)
    assert len(shown) == len(CLAIMS)


@pytest.mark.parametrize(("gain", "expected"), [(0.6, "holds"), (0.2, "holds in part"), (0.01, "does not hold")])
def test_the_time_of_inference_decides(gain, expected):
    result = load("learning-rates")
    for row in result["derived"]:
        if row["configuration"].startswith("equal"):
            row["g_v"] = gain
    assert verdict("BatchNorm in place of LayerNorm", result) == expected


@pytest.mark.parametrize("model", ["ViTBNFFN", "ViTBN"])
@pytest.mark.parametrize(("low", "expected"), [(2.5, "holds"), (1.2, "holds in part"), (1.0, "does not hold")])
def test_the_slowest_rate_decides(model, low, expected):
    result = load("learning-rates")
    for row in result["derived"]:
        row["r_t_range"] = [low, 3.0]
    assert verdict(f"{model} trains", result) == expected


def with_last(result, accuracies):
    """`accuracies`: (model, depth, rate) -> accuracy in every epoch."""
    changed = copy.deepcopy(result)
    for run in changed["runs"]:
        key = (run["config"]["model"], run["config"]["depth"], run["options"]["lr"])
        for epoch in run["series"]:
            epoch["test_accuracy"] = accuracies.get(key, epoch["test_accuracy"])
    return changed


@pytest.mark.parametrize(
    ("vit", "others", "expected"), [(0.5, 0.98, "holds"), (0.7, 0.8, "holds in part"), (0.9, 0.9, "does not hold")]
)
def test_the_accuracy_at_a_high_rate_decides(vit, others, expected):
    known = {("vit", 6, 0.01): vit, ("vitbn", 6, 0.01): others, ("vitbnffn", 6, 0.01): others}
    assert verdict("At a learning rate of 0.01", with_last(load("learning-rates"), known)) == expected


def test_verdicts_of_two_sizes_that_differ_hold_in_part(tmp_path):
    shutil.copytree(RESULTS, tmp_path / "studies", ignore=shutil.ignore_patterns("runs", "*.png"))
    for name, images, vitbnffn in (("depths-0.003", 10_000, 0.8), ("depths-0.003-all-images", 60_000, 0.9)):
        result = with_pairs({6: (0.8, vitbnffn)}, 0.003) | {"command": "the command"}
        result["scope"] = {"epochs": 10, "train_images": images, "seeds": 1}
        (tmp_path / f"studies/{name}/{name}.json").write_text(json.dumps(result))
    (row,) = (line for line in page(tmp_path / "studies").splitlines() if "At 0.003 ViTBNFFN is much" in line)
    small, large = row.split("10 epochs, 60,000 images, seeds 1:")
    assert "holds in part" in small
    assert "10 epochs, 10,000 images, seeds 1: distorted test images, depth 6: ViT 80.0 %, ViTBNFFN 80.0 %" in small
    assert "ViTBNFFN 90.0 %" in large
    assert "[depths-0.003-all-images](" in large


def test_hours_at_the_published_size():
    epochs = [{"training_time_s": train_s, "test_time_s": 5.0} for train_s in (9.0, 10.0, 30.0)]
    runs = [{"series": epochs}, {"series": []}]
    assert _hours(runs, Size(3, 1000), Size(36, 2000)) == pytest.approx(36 * (2 * 9 + 5) / 3600)


@pytest.mark.parametrize(
    ("vit", "expected"), [(0.99, "holds"), (0.94, "holds in part"), (0.9, "does not hold"), (0.905, "does not hold")]
)
def test_the_mean_accuracy_at_a_low_rate_decides(vit, expected):
    known = {("vit", 6, 0.0005): vit, ("vitbn", 6, 0.0005): 0.95, ("vitbnffn", 6, 0.0005): 0.9}
    assert verdict("At 0.0005", with_last(load("learning-rates"), known)) == expected


def test_the_time_of_an_epoch_decides():
    result = load("learning-rates")
    for run in result["runs"]:
        for epoch in run["series"]:
            epoch["training_time_s"] = 1 + run["options"]["lr"] * 100
    assert verdict("The time of an epoch", result) == "holds"


def with_pairs(pairs, rate):
    """`pairs`: depth -> accuracy of ViT and of ViTBNFFN."""
    runs = [
        {
            "config": {"model": model, "depth": depth},
            "options": {"lr": rate},
            "series": [{"test_accuracy": accuracy, "training_time_s": 1.0, "test_time_s": 1.0}] * 2,
        }
        for depth, both in pairs.items()
        for model, accuracy in zip(("vit", "vitbnffn"), both, strict=True)
    ]
    return {"runs": runs}


@pytest.mark.parametrize(
    ("deepest", "expected"),
    [((0.1, 0.9), "holds"), ((0.7, 0.8), "holds in part"), ((0.7, 0.1), "does not hold")],
)
def test_the_fall_with_depth_decides(deepest, expected):
    result = with_pairs({1: (0.9, 0.9), 4: deepest}, 0.005)
    assert verdict("At 0.005", result) == expected


@pytest.mark.parametrize(
    ("other", "expected"), [(0.98, "holds"), (0.93, "holds in part"), (0.905, "does not hold"), (0.8, "does not hold")]
)
def test_the_lead_of_deep_networks_decides(other, expected):
    result = with_pairs({6: (0.9, other), 7: (0.9, other)}, 0.003)
    assert verdict("At 0.003", result) == expected
    stable = "holds" if other > 0.91 else "does not hold"
    assert verdict("At high rates", result) == stable


@pytest.mark.parametrize(
    ("leads", "expected"),
    [((0.1, 0.1, 0.1), "holds"), ((0.1, 0.0, 0.0), "holds in part"), ((0.001, 0.005, 0.0), "does not hold")],
)
def test_the_mean_lead_decides(leads, expected):
    pairs = {4: (0.9, 0.9)} | {depth: (0.8, 0.8 + lead) for depth, lead in zip((5, 6, 7), leads, strict=True)}
    assert verdict("ViTBNFFN converges", with_pairs(pairs, 0.003)) == expected


def test_a_run_that_diverged_at_once_counts_as_chance():
    result = with_pairs({6: (0.8, 0.8)}, 0.003)
    result["runs"][0]["series"] = []
    assert verdict("ViTBNFFN converges", result) == "holds"
    result["runs"][1]["series"] = []
    assert verdict("ViTBNFFN converges", result) == "does not hold"


@pytest.mark.parametrize(
    ("without", "expected"), [((0.5, 0.1), "holds"), ((0.5, 0.95), "holds in part"), ((0.95, 0.95), "does not hold")]
)
def test_sigmoids(without, expected):
    known = {("dnnbn", None, rate): 0.95 for rate in (0.01, 0.1)}
    known |= {("dnn", None, rate): accuracy for rate, accuracy in zip((0.01, 0.1), without, strict=True)}
    result = load("dnn")
    for run in result["runs"]:
        run["config"]["depth"] = None
    assert verdict("BatchNorm lets", with_last(result, known)) == expected


def test_a_network_with_sigmoids_that_diverged_at_once_counts_as_chance():
    result = load("dnn")
    for run in result["runs"]:
        run["series"] = run["series"] if run["config"]["model"] == "dnnbn" else []
    assert verdict("BatchNorm lets", result) == "holds"


def test_emnist_is_judged_where_it_was_measured():
    result = load("shift")
    assert verdict("Networks trained on MNIST", result) == "not tested here"
    first, *others = result["derived"]
    for ours, theirs, expected in (
        (0.95, 0.95, "holds"),
        (0.95, 0.05, "holds in part"),
        (0.05, 0.05, "does not hold"),
    ):
        first["sets"]["emnist-digits"] = {"accuracy": ours}
        for row in others:
            row["sets"]["emnist-digits"] = {"accuracy": theirs}
        assert verdict("Networks trained on MNIST", result) == expected


@pytest.mark.parametrize("content", ["", "{}", '{"runs": []}'])
def test_a_file_that_is_no_result_is_named(content, tmp_path):
    for name in {claim.study for claim in CLAIMS}:
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.json").write_text(content)
    with pytest.raises(StudyError, match=r"\.json: expected the (result|figures)"):
        page(tmp_path)
    ended = CliRunner().invoke(study, ["claims", "--results", str(tmp_path), "--output", str(tmp_path / "page.md")])
    assert ended.exit_code == 1
    assert not (tmp_path / "page.md").exists()
