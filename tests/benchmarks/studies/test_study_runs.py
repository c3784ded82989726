import gc
import weakref
from dataclasses import replace

import pytest

from benchmarks.studies.study_runs import Run, train_in_turns
from benchmarks.studies.study_writer import StudyError
from models.checkpoints.checkpoint import load
from models.data import load_digits
from models.networks.config import ModelConfig
from models.training.loop import train
from models.training.recipe import TrainingOptions

OPTIONS = TrainingOptions(epochs=3, batch_size=50, lr=0.01, seed=0, device="cpu")
TINY = ModelConfig(model="vit", dim=16, depth=1, heads=2, dim_head=8, mlp_dim=24, dropout=0.1)
RUNS = [
    Run("a", TINY, OPTIONS, {"network": "a"}),
    Run("b", replace(TINY, model="vitbn"), replace(OPTIONS, augment="light"), {"network": "b"}),
]


@pytest.fixture(scope="module")
def digits():
    return load_digits().first(100, 30)


def seen(epochs):
    return [
        (run.label, epoch.epoch, round(epoch.training_loss, 8), round(epoch.test_accuracy, 8)) for run, epoch in epochs
    ]


def written(runs):
    figures = ("epoch", "training_loss", "test_accuracy")
    return [(run["label"], *(epoch[name] for name in figures)) for run in runs for epoch in run["series"]]


def carry_on(folder, digits, runs=RUNS, study="a study", stop_after=None):
    """Runs all, or `stop_after` epochs; returns reports and result, if any."""
    epochs = []

    def on_epoch(run, epoch):
        epochs.append((run, epoch))
        if len(epochs) == stop_after:
            raise KeyboardInterrupt

    try:
        return epochs, train_in_turns(study, runs, digits, 10, folder, on_epoch)
    except KeyboardInterrupt:
        return epochs, None


def refusal(folder, digits, runs=RUNS, study="a study"):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(StudyError) as refused:
        carry_on(folder, digits, runs, study)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(str(folder))
    assert message.endswith("; name another --output")
    return message


@pytest.fixture(scope="module")
def whole(tmp_path_factory, digits):
    folder = tmp_path_factory.mktemp("whole")
    return folder, *carry_on(folder, digits)


def test_all_runs_take_turns(whole):
    _, epochs, _ = whole
    order = [(run.label, epoch.epoch) for run, epoch in epochs]
    assert order == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3), ("b", 3)]


def test_series_are_those_of_each_run_alone(whole, digits, tmp_path):
    for run, trained in zip(RUNS, whole[2], strict=True):
        alone = train(run.config, digits, run.options, tmp_path / run.label)
        assert seen((run, epoch) for epoch in alone) == written([trained])


def test_a_run_that_diverges_ends_and_the_others_go_on(digits, tmp_path):
    wild = Run("wild", TINY, replace(OPTIONS, lr=1e30), {})
    epochs, trained = carry_on(tmp_path, digits, [wild, RUNS[1]])
    assert [(run.label, epoch.epoch) for run, epoch in epochs] == [("b", 1), ("b", 2), ("b", 3)]
    assert [(run["label"], len(run["series"])) for run in trained] == [("wild", 0), ("b", 3)]
    assert carry_on(tmp_path, digits, [wild, RUNS[1]]) == ([], trained)


@pytest.mark.parametrize("stop_after", [1, 5])
def test_a_stopped_study_goes_on_as_if_it_never_had(whole, digits, tmp_path, stop_after):
    before, nothing = carry_on(tmp_path, digits, stop_after=stop_after)
    assert (len(before), nothing) == (stop_after, None)
    after, result = carry_on(tmp_path, digits)
    assert seen(before + after) == seen(whole[1])
    assert written(result) == written(whole[2])
    for run in RUNS:
        networks = [load(folder / f"{run.label}.safetensors").model.state_dict() for folder in (tmp_path, whole[0])]
        assert all(networks[0][name].equal(networks[1][name]) for name in networks[1])


def test_a_run_killed_between_its_files_goes_on(whole, digits, tmp_path):
    carry_on(tmp_path, digits, stop_after=2)
    state = (tmp_path / "a.resume.pt").read_bytes()
    carry_on(tmp_path, digits, stop_after=1)  # a's second epoch
    (tmp_path / "a.resume.pt").write_bytes(state)  # as if killed before it was written
    epochs, result = carry_on(tmp_path, digits)
    assert [(run.label, epoch.epoch) for run, epoch in epochs] == [("b", 2), ("a", 2), ("a", 3), ("b", 3)]
    assert written(result) == written(whole[2])


def test_more_epochs_at_a_constant_rate_go_on(whole, digits, tmp_path):
    shorter = [replace(run, options=replace(run.options, epochs=1)) for run in RUNS]
    carry_on(tmp_path, digits, shorter)
    epochs, _ = carry_on(tmp_path, digits)
    assert seen(epochs) == seen(whole[1][2:])


def test_fewer_epochs_than_a_run_has_are_refused(whole, digits):
    fewer = [replace(run, options=replace(run.options, epochs=2)) for run in RUNS]
    assert "a.json: expected at most 2 epochs, found 3" in refusal(whole[0], digits, fewer)


def test_one_run_is_in_memory_at_a_time(digits, tmp_path, monkeypatch):
    """A run that is waiting holds neither its network nor the images."""
    from models.training import state

    alive = weakref.WeakSet()
    build = state.build
    monkeypatch.setattr(state, "build", lambda *given: alive.add(network := build(*given)) or network)
    counts = []

    def on_epoch(run, epoch):
        gc.collect()
        counts.append(len(alive))

    train_in_turns("a study", RUNS, digits, 10, tmp_path, on_epoch)
    assert counts == [0] * 6


@pytest.mark.parametrize(
    ("run", "study", "images", "said"),
    [
        (replace(RUNS[0], options=replace(OPTIONS, lr=0.02)), "a study", 100, "a options lr 0.02, found 0.01"),
        (replace(RUNS[0], config=replace(TINY, mlp_dim=32)), "a study", 100, "a config mlp_dim 32, found 24"),
        (replace(RUNS[0], label="c"), "a study", 100, "a config model none, found vit"),
        (RUNS[0], "another", 100, "study another, found a study"),
        (RUNS[0], "a study", 99, "train images 99, found 100"),
    ],
    ids=["options", "config", "label", "study", "images"],
)
def test_the_folder_of_another_study_is_refused(whole, digits, run, study, images, said):
    assert f"plan.json: expected {said}" in refusal(whole[0], digits.first(images), [run, RUNS[1]], study)


@pytest.mark.parametrize(("model", "schedule"), [("vit", "one-cycle"), ("vit-prepbn", "constant")])
def test_epochs_that_matter_cannot_change(digits, tmp_path, model, schedule):
    def once(epochs):
        return [Run("a", replace(TINY, model=model), replace(OPTIONS, schedule=schedule, epochs=epochs), {})]

    carry_on(tmp_path, digits, once(1))
    assert "expected a options epochs 2, found 1" in refusal(tmp_path, digits, once(2))


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("plan.json", b"", "the plan of a study"),
        ("plan.json", b"[1, 2]", "the plan of a study"),
        ("a.json", b"", "the series of a training"),
        ("a.json", b'{"series": [{"epoch": 1}]}', "the series of a training"),
    ],
)
def test_a_damaged_file_is_named(digits, tmp_path, file, content, expected):
    carry_on(tmp_path, digits, stop_after=1)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(StudyError, match=f"{file}: expected {expected}, found"):
        carry_on(tmp_path, digits)
