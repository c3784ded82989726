import json
import math
from dataclasses import replace

import pytest
from tune_runs import SEARCH, SPACE, failure

from benchmarks.studies.search import (
    FIRST_TRIALS,
    Axis,
    SearchError,
    Trial,
    best,
    front,
    propose,
    read,
    write,
)
from benchmarks.studies.tune import GEOMETRY

pytestmark = pytest.mark.slow  # Ax takes seconds to import
FRONTIER = replace(SEARCH, space=GEOMETRY, speed=True)
SMALL = {"patch": 7, "depth": 1, "dim": 32, "heads": 2, "last_heads": 4, "mlp_dim": 64}
GIVEN = {"lr": 1e-3, "batch_size": 50, "depth": 1, "schedule": "constant"}


def peak(parameters):
    return 0.95 - 0.05 * (math.log10(parameters["lr"]) + 3) ** 2 - 0.0002 * abs(parameters["batch_size"] - 60)


def searched(search, count, accuracy=peak, speed=lambda parameters: None):
    trials = []
    for _ in range(count):
        parameters = propose(search, trials)
        trials.append(Trial(parameters, accuracy(parameters), 1.0, None, speed(parameters)))
    return trials


def differ(trials):
    return len({json.dumps(trial.parameters) for trial in trials}) == len(trials)


@pytest.fixture(scope="module")
def climbed():
    return searched(SEARCH, FIRST_TRIALS + 3)


def test_proposals_stay_in_the_ranges_on_a_logarithmic_scale(climbed):
    low, high = SPACE["lr"].values
    assert all(axis.holds(trial.parameters[name]) for trial in climbed for name, axis in SPACE.items())
    assert climbed[0].parameters["lr"] == pytest.approx(math.sqrt(low * high)), "the centre of a logarithmic scale"
    assert climbed[0].parameters["batch_size"] == 70


def test_depth_and_schedule_are_searched_where_that_is_asked_for():
    axes = {"depth": Axis((2, 4)), "schedule": Axis(("constant", "one-cycle"), listed=True)}
    trials = searched(replace(SEARCH, space=SPACE | axes), FIRST_TRIALS)
    depths = {trial.parameters["depth"] for trial in trials}
    assert len(depths) > 1
    assert depths <= {2, 3, 4}
    assert {trial.parameters["schedule"] for trial in trials} == {"constant", "one-cycle"}


def test_geometries_stay_in_the_space_and_differ_though_a_trial_fails():
    (failed,) = searched(FRONTIER, 1, lambda parameters: None)

    def work(parameters):
        return parameters["depth"] * parameters["dim"] * (parameters["last_heads"] + parameters["mlp_dim"])

    def ended(parameters, figure):
        return None if parameters == failed.parameters else figure

    trials = searched(
        FRONTIER,
        FIRST_TRIALS + 1,
        lambda it: ended(it, 1 - 1 / math.sqrt(work(it))),
        lambda it: ended(it, 1e9 / work(it)),
    )
    assert (trials[0].accuracy, trials[0].images_per_s) == (None, None)
    assert all(axis.holds(trial.parameters[name]) for trial in trials for name, axis in GEOMETRY.items())
    assert differ(trials)


def test_the_search_climbs(climbed):
    assert best(climbed[FIRST_TRIALS:]).accuracy > best(climbed[:FIRST_TRIALS]).accuracy
    assert 5e-4 < best(climbed).parameters["lr"] < 2e-3


def test_another_seed_proposes_otherwise():
    assert searched(SEARCH, 2) != searched(replace(SEARCH, seed=1), 2)


def test_a_search_of_failed_trials_goes_on():
    trials = searched(SEARCH, FIRST_TRIALS + 1, lambda parameters: None)
    assert differ(trials)
    with pytest.raises(SearchError, match="expected a trial whose loss stays finite, found 6 failures"):
        best(trials)


def test_the_frontier_is_what_no_other_beats():
    quick, middle, right = (
        Trial(SMALL, *of) for of in ((0.9, 1.0, None, 9e3), (0.95, 1.0, None, 5e3), (0.99, 1.0, None, 1e2))
    )
    beaten, failed = Trial(SMALL, 0.94, 1.0, None, 4e3), Trial(SMALL, None, 1.0, "diverged")
    assert front([beaten, right, failed, quick, middle]) == [quick, middle, right]
    assert best([beaten, right, failed, quick, middle]) == right
    assert front([failed]) == []


def stored(tmp_path, search=SEARCH, trial=None):
    path = tmp_path / "vitbn.trials.json"
    trial = trial or Trial(GIVEN, 0.9, 1.0)
    trials = [trial, replace(trial, accuracy=None, images_per_s=None, error="training loss: found nan")]
    assert read(path, search) == []
    write(path, search, trials, {"cpu": "one"})
    assert read(path, search) == trials
    return path, json.loads(path.read_text())


@pytest.mark.parametrize("content", [b"", b"not JSON", b"\xff", b"[]", b"{}", b'{"search": {}, "trials": 3}'])
def test_a_file_without_trials_is_named_and_kept(tmp_path, content):
    path = tmp_path / "vitbn.trials.json"
    path.write_bytes(content)
    message, exit_code = failure(tmp_path, "--trials", 1)
    assert (exit_code, f"{path}: expected " in message) == (1, True)
    assert path.read_bytes() == content


def test_a_cut_file_of_trials_is_refused_in_words(tmp_path):
    (path := tmp_path / "vitbn.trials.json").write_text("{")
    with pytest.raises(SearchError, match="expected the trials of a search, found Expecting property name"):
        read(path, SEARCH)


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("parameters", "lr", 0.011),
        ("parameters", "lr", "0.001"),
        ("parameters", "batch_size", 50.5),
        ("parameters", "batch_size", 121),
        ("parameters", "depth", 2),
        ("parameters", "schedule", "two-cycle"),
        (None, "parameters", 3),
        (None, "accuracy", 1.1),
        (None, "accuracy", math.nan),
        (None, "accuracy", None),
        (None, "duration_s", -1.0),
        (None, "error", "an accuracy and an error"),
        (None, "error", 3),
        ("parameters", "dim", 33),
        *((None, "images_per_s", value) for value in (0.0, math.nan, math.inf, "x")),
    ],
)
def test_a_trial_that_this_search_cannot_have_made_is_refused(tmp_path, where, name, value):
    speed = name in ("dim", "images_per_s")
    search, trial = (FRONTIER, Trial(SMALL, 0.9, 1.0, None, 10.0)) if speed else (SEARCH, None)
    path, content = stored(tmp_path, search, trial)
    trial = content["trials"][0]
    (trial[where] if where else trial)[name] = value
    path.write_text(json.dumps(content))
    with pytest.raises(SearchError, match=r"vitbn\.trials\.json: trial 1: expected "):
        read(path, search)


@pytest.mark.parametrize(
    ("name", "value"),
    [("dataset", "mnist"), ("seed", 1), ("epochs", 2), ("train_images", 121), ("space", GEOMETRY)],
)
def test_the_file_of_another_search_is_refused(tmp_path, name, value):
    path, _ = stored(tmp_path)
    with pytest.raises(SearchError, match=f"expected a search with {name} .*; name another --output"):
        read(path, replace(SEARCH, **{name: value}))
