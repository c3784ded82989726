import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import vitbn
from models import tune_frontier
from models.data import load_digits
from models.frontier_search import (
    CHOICES,
    DEPTHS,
    FrontierSearch,
    FrontierTrial,
    Geometry,
    front,
    propose,
    read,
    write,
)
from models.search import FIRST_TRIALS, SearchError

SEARCH = FrontierSearch("digits", 1, 120, 287, 0)
SMALL = Geometry(1, 32, 2, 4, 64)


def trial(accuracy: float, speed: float) -> FrontierTrial:
    return FrontierTrial(SMALL, accuracy, speed, 1.0)


def measured(geometry: Geometry) -> FrontierTrial:
    work = geometry.depth * geometry.dim * (geometry.last_heads + geometry.mlp_dim)
    return FrontierTrial(geometry, 1 - 1 / math.sqrt(work), 1e9 / work, 1.0)


@pytest.mark.slow
def test_proposals_stay_in_the_space_and_differ() -> None:
    trials: list[FrontierTrial] = []
    for _ in range(FIRST_TRIALS + 1):
        geometry = propose(SEARCH, trials)
        assert DEPTHS[0] <= geometry.depth <= DEPTHS[1]
        assert all(getattr(geometry, name) in values for name, values in CHOICES.items())
        trials.append(measured(geometry))
    assert len({trial.geometry for trial in trials}) == len(trials)


@pytest.mark.slow
def test_failed_trials_are_proposed_no_second_time() -> None:
    trials: list[FrontierTrial] = []
    for _ in range(FIRST_TRIALS + 2):
        trials.append(FrontierTrial(propose(SEARCH, trials), None, None, 1.0, "diverged"))
    assert len({trial.geometry for trial in trials}) == len(trials)


def test_the_frontier_is_what_no_other_beats() -> None:
    quick, middle, best = trial(0.90, 9000.0), trial(0.95, 5000.0), trial(0.99, 100.0)
    beaten = trial(0.94, 4000.0)
    failed = FrontierTrial(SMALL, None, None, 1.0, "diverged")
    assert front([beaten, best, failed, quick, middle]) == [quick, middle, best]
    assert front([trial(0.9, 1.0), trial(0.8, 1.0)]) == [trial(0.9, 1.0)]
    assert front([failed]) == []


def test_the_network_of_a_geometry() -> None:
    config = Geometry(3, 48, 4, 16, 256).config(load_digits())
    assert (config.depth, config.dim, config.heads, config.dim_head, config.mlp_dim) == (3, 48, 4, 16, 256)
    assert config.class_attention == (16, 16)


def test_a_file_gives_back_its_trials_and_refuses_others(tmp_path: Path) -> None:
    path, trials = tmp_path / "trials.json", [trial(0.9, 10.0), FrontierTrial(SMALL, None, None, 1.0, "diverged")]
    assert read(path, SEARCH) == []
    write(path, SEARCH, trials, {})
    assert read(path, SEARCH) == trials
    assert json.loads(path.read_text())["frontier"] == [1]
    with pytest.raises(SearchError, match="expected a search with epochs 2, found 1"):
        read(path, replace(SEARCH, epochs=2))
    for damage in (
        b"{",
        path.read_bytes().replace(b'"dim": 32', b'"dim": 33'),
        path.read_bytes().replace(b"10.0", b'"x"'),
    ):
        path.write_bytes(damage)
        with pytest.raises(SearchError, match="expected the trials of a search"):
            read(path, SEARCH)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *(("10.0", figure) for figure in ("0.0", "NaN", "Infinity")),
        ("0.9", "2.0"),
        ('"depth": 1', '"depth": 1.0'),
        ('"duration_s": 1.0', '"duration_s": null'),
        ('"error": null', '"error": "x"'),
    ],
)
def test_figures_that_no_trial_has(before: str, after: str, tmp_path: Path) -> None:
    path = tmp_path / "trials.json"
    write(path, SEARCH, [trial(0.9, 10.0)], {})
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(SearchError, match="expected the trials of a search"):
        read(path, SEARCH)


@pytest.mark.slow
def test_a_trial_is_trained_measured_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITBN_BENCHMARK_ROUNDS", "1")
    monkeypatch.setattr(tune_frontier, "propose", lambda search, trials: SMALL)
    arguments = ["--objective", "frontier", "--trials", "1", "--epochs", "1", "--train-images", "120"]
    result = CliRunner().invoke(vitbn.main, ["tune", *arguments, "--device", "cpu", "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "On the frontier: trials 1" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frontier.png", "frontier.trials.json", "trials"]
    (row,) = json.loads((tmp_path / "frontier.trials.json").read_text())["trials"]
    assert row["images_per_s"] > 0
    assert 0 < row["accuracy"] < 1


@pytest.mark.parametrize("option", [("--model", "cnn"), ("--depth", "6")])
def test_what_the_frontier_does_not_search_is_refused(option: tuple[str, str], tmp_path: Path) -> None:
    result = CliRunner().invoke(vitbn.main, ["tune", "--objective", "frontier", *option, "--output", str(tmp_path)])
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "expected --objective frontier with only --model vitbn" in result.output
