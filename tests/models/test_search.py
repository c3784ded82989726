import json
import math
from dataclasses import asdict, replace

import pytest
from searching import SEARCH, failure

from models.search import (
    BATCH_SIZES,
    FIRST_TRIALS,
    LEARNING_RATES,
    Parameters,
    SearchError,
    Trial,
    best,
    propose,
    read,
    write,
)

pytestmark = pytest.mark.slow  # Ax takes seconds to import


def peak(parameters):
    return 0.95 - 0.05 * (math.log10(parameters.lr) + 3) ** 2 - 0.0002 * abs(parameters.batch_size - 60)


def searched(search, count, accuracy=peak):
    trials = []
    for _ in range(count):
        parameters = propose(search, trials)
        trials.append(Trial(parameters, accuracy(parameters), 1.0))
    return trials


def test_the_ranges():
    batch_statistics = ["vitbnffn", "vitbn", "vit-repbn", "vit-prepbn", "vit-un", "vit-dfn", "cnn"]
    expected = dict.fromkeys(["vit", "vit-dtn", "vit-minmax", "vit-zscore"], (1e-5, 1e-3))
    assert expected | dict.fromkeys(batch_statistics, (1e-5, 1e-2)) == LEARNING_RATES
    assert BATCH_SIZES == (20, 120)


@pytest.mark.parametrize("model", ["vit", "vitbn"])
def test_proposals_stay_in_the_ranges_on_a_logarithmic_scale(model):
    low, high = LEARNING_RATES[model]
    trials = searched(replace(SEARCH, model=model), FIRST_TRIALS + 2)
    for trial in trials:
        assert low <= trial.parameters.lr <= high
        assert type(trial.parameters.batch_size) is int
        assert 20 <= trial.parameters.batch_size <= 120
        assert (trial.parameters.depth, trial.parameters.schedule) == (1, "constant")
    assert trials[0].parameters.lr == pytest.approx(math.sqrt(low * high)), "the centre of a logarithmic scale"
    assert trials[0].parameters.batch_size == 70


def test_depth_and_schedule_are_searched_where_that_is_asked_for():
    trials = searched(replace(SEARCH, depths=(2, 4), schedules=("constant", "one-cycle")), FIRST_TRIALS + 1)
    depths = {trial.parameters.depth for trial in trials}
    assert len(depths) > 1
    assert depths <= {2, 3, 4}
    assert {trial.parameters.schedule for trial in trials} == {"constant", "one-cycle"}


def test_the_search_climbs():
    trials = searched(SEARCH, FIRST_TRIALS + 6)
    assert best(trials[FIRST_TRIALS:]).accuracy > best(trials[:FIRST_TRIALS]).accuracy
    assert 5e-4 < best(trials).parameters.lr < 2e-3


def test_another_seed_proposes_otherwise():
    assert searched(SEARCH, 2) != searched(replace(SEARCH, seed=1), 2)


def test_the_search_leaves_where_trials_fail():
    def fails_above(parameters):
        return None if parameters.lr > 3e-4 else 0.5

    trials = searched(SEARCH, FIRST_TRIALS + 3, fails_above)
    failed = [trial.parameters for trial in trials if trial.accuracy is None]
    assert failed
    assert len({parameters.lr for parameters in failed}) == len(failed), "none is tried a second time"


def test_a_search_of_failed_trials_goes_on():
    trials = searched(SEARCH, FIRST_TRIALS + 2, lambda parameters: None)
    assert len({trial.parameters for trial in trials}) == len(trials)
    with pytest.raises(SearchError, match="expected a trial whose loss stays finite, found 7 failures"):
        best(trials)


def stored(tmp_path):
    path = tmp_path / "vitbn.trials.json"
    write(path, SEARCH, [Trial(Parameters(1e-3, 50, 1, "constant"), 0.9, 1.0)], {})
    assert read(path, SEARCH) == [Trial(Parameters(1e-3, 50, 1, "constant"), 0.9, 1.0)]
    return path, json.loads(path.read_text())


@pytest.mark.parametrize("content", [b"", b"not JSON", b"\xff", b"[]", b"{}", b'{"search": {}, "trials": 3}'])
def test_a_file_of_trials_that_is_none(tmp_path, content):
    path = tmp_path / "vitbn.trials.json"
    path.write_bytes(content)
    message, exit_code = failure(tmp_path, "--trials", 1)
    assert (exit_code, f"{path}: expected " in message) == (1, True)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("parameters", "lr", 0.011),
        ("parameters", "lr", "0.001"),
        ("parameters", "batch_size", 50.5),
        ("parameters", "batch_size", 121),
        ("parameters", "depth", 2),
        ("parameters", "schedule", "two-cycle"),
        (None, "accuracy", 1.1),
        (None, "accuracy", math.nan),
        (None, "accuracy", None),
        (None, "duration_s", -1.0),
        (None, "error", "an accuracy and an error"),
    ],
)
def test_a_trial_that_this_search_cannot_have_made(tmp_path, where, name, value):
    path, content = stored(tmp_path)
    trial = content["trials"][0]
    (trial[where] if where else trial)[name] = value
    path.write_text(json.dumps(content))
    with pytest.raises(SearchError, match=r"vitbn\.trials\.json: trial 1: expected "):
        read(path, SEARCH)


@pytest.mark.parametrize(
    ("name", "value"),
    [("dataset", "mnist"), ("seed", 1), ("epochs", 2), ("train_images", 121), ("depths", (1, 2))],
)
def test_the_file_of_another_search(tmp_path, name, value):
    path, _ = stored(tmp_path)
    with pytest.raises(SearchError, match=f"expected a search with {name} .*; name another --output"):
        read(path, replace(SEARCH, **{name: value}))


def test_trials_survive_the_file(tmp_path):
    trials = [
        Trial(Parameters(1e-5, BATCH_SIZES[0], 1, "constant"), 0.123456789, 1.5),
        Trial(Parameters(1e-2, BATCH_SIZES[1], 1, "constant"), None, 0.5, "training loss: found nan"),
    ]
    write(tmp_path / "trials.json", SEARCH, trials, {"cpu": "one"})
    assert read(tmp_path / "trials.json", SEARCH) == trials
    rows = json.loads((tmp_path / "trials.json").read_text())["trials"]
    assert rows[1] == {"trial": 2, "status": "failed", **asdict(trials[1])}
