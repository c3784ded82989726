import json
import os
import re
import time
from datetime import datetime, timezone
from pathlib import Path

import click
import pytest
from commands import failure, invoke, measured, ok
from refusals import check_refused

from benchmarks.accuracy import accuracy
from benchmarks.faults import faults
from benchmarks.foreign import foreign
from benchmarks.latency import latency
from benchmarks.measure.interleaved_timing import Durations, Protocol, time_interleaved
from benchmarks.measure.options import Result, WithPresets, json_option, names_option, seconds_option
from benchmarks.measure.result_file import recording
from benchmarks.throughput import throughput
from common.finite_range import FiniteRange
from serving.local_server import ServerFailed

pytestmark = pytest.mark.usefixtures("any_rounds")
WITH_PRESETS = (latency, throughput, foreign)
PRESETS = [command.preset(name) for command in WITH_PRESETS for name in command.presets]
COMMANDS = [*WITH_PRESETS, *PRESETS, accuracy, faults]


@click.command()
@click.argument("kinds", nargs=-1)
@names_option("--name", "names", "abc")
@click.option("--batch", type=int, multiple=True)
@click.option("--folder", type=click.Path(file_okay=False))
@seconds_option(3, "Not asked for.")
@json_option
def measure(json_path: Path | None, **options: object) -> None:
    with recording(json_path, 1) as record:
        record.update([{"sent": 1}])


def test_a_result_that_git_keeps_names_the_commit_of_its_start(monkeypatch, tmp_path):
    commits = iter(["abc1234", "abc1234-dirty"])
    monkeypatch.setattr("benchmarks.measure.result_file.commit", lambda: next(commits))
    _, written = measured(measure, tmp_path / "result.json")
    assert (written["commit"], "doubt" in written) == ("abc1234", False)


def test_every_result_says_what_measured_it_and_when(tmp_path: Path) -> None:
    path = tmp_path / "new/result.json"
    words = ("x y", "--name", "c", "--name", "a", "--batch", 1, "--batch", 2, "--folder", tmp_path)
    printed, written = measured(measure, path, *words)
    assert printed == f"Wrote {path}\n"
    dirty = str(written["commit"]).endswith("-dirty")
    assert set(written) - {"doubt"} == {"command", "commit", "date", "machine", "limits", "rows"}
    assert ("uncommitted changes" in written.get("doubt", "")) == dirty
    assert (
        written["command"]
        == "python benchmarks/measure.py 'x y' --name c --name a --batch 1 --batch 2 --folder DIR --json FILE"
    )
    assert abs(datetime.now(timezone.utc) - datetime.fromisoformat(written["date"])).total_seconds() < 600
    assert str(tmp_path) not in path.read_text()


@pytest.mark.parametrize("command", WITH_PRESETS, ids=lambda command: command.name)
def test_every_preset_has_a_command_with_its_own_options(command: WithPresets) -> None:
    for name in command.presets:
        assert f"{command.name} --preset {name} [OPTIONS]" in ok(command, "--preset", name, "--help").output
        line, code = failure(command, f"--preset={name}", "--no-such-option")
        assert (code, "No such option" in line) == (2, True)


@pytest.mark.parametrize("error", [ServerFailed("no server"), TimeoutError("no answer"), ZeroDivisionError()])
def test_an_error_marks_what_was_measured(error: Exception, tmp_path: Path) -> None:
    @click.command()
    def failing() -> None:
        with recording(tmp_path / "result.json", 1) as record:
            record.update([{"sent": 1}])
            raise error

    result = invoke(failing)
    written = json.loads((tmp_path / "result.json").read_text())
    assert (written["interrupted"], written["rows"]) == (True, [{"sent": 1}])
    known = not isinstance(error, ZeroDivisionError)
    assert (result.exit_code, result.output) == (1, f"Error: {error}\n" if known else "")


@pytest.mark.parametrize(("at_call", "rounds"), [(12, [5]), (1, [])], ids=["a round", "the first round"])
def test_ctrl_c_keeps_the_finished_rounds(at_call: int, rounds: list[int]) -> None:
    """After a call of warm-up a round has two calls."""
    calls, kept = [], list[dict[str, Durations]]()

    def work() -> None:
        calls.append(0)
        if len(calls) == at_call:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        time_interleaved({"a": work}, 60, protocol=Protocol(), use=kept.append)
    assert [len(measured["a"].samples_ns) for measured in kept] == rounds


@pytest.mark.slow
def test_an_interrupted_benchmark_writes_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, sleeps = time.sleep, []

    def stop_in_the_third_round(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) > 2 * 2:  # a sleep before each turn
            raise KeyboardInterrupt
        real(seconds)

    monkeypatch.setattr("benchmarks.measure.interleaved_timing.time.sleep", stop_in_the_third_round)
    options = "--batch 2 --depth 1 --model vitbn --model cnn --runtime torch --device cpu"
    printed, written = measured(latency, tmp_path / "latency.json", *options.split(), code=130)
    assert "Interrupted: only the finished rounds count" in printed
    assert written["interrupted"]
    assert [row["rounds"] for row in written["rows"]] == [2, 2]


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("folder", "is a directory"),
        ("file/a.json", "expected a place to write to, found Not a directory"),
        ("pipe", "expected a file or nothing, found something else"),
        ("/proc/results.json", "expected a place to write to, found"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_first(place: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    check_refused(tmp_path, measure, f"--json {place}", 2, f"{place} … {reason}")


def test_every_command_checks_where_it_writes_and_how_long_it_takes() -> None:
    """Except the preset of GPUs, whose steps do."""
    commands = [command for command in COMMANDS if command.name != "gpu"]
    types = [{parameter.opts[0]: parameter.type for parameter in command.params} for command in commands]
    assert all(isinstance(by_option["--json"], Result) for by_option in types)
    names = ("--seconds", "--rate", "--max-p99-ms", "--hours")
    numbers = [by_option[name] for by_option in types for name in names if name in by_option]
    assert len(numbers) > 10
    assert all(isinstance(number, FiniteRange) for number in numbers)


def test_it_says_before_it_starts_how_long_it_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.measure.interleaved_timing.MOST_ROUNDS", 3)
    time_interleaved({"slow": lambda: time.sleep(0.25)}, 9, "it")  # too slow for untimed calls
    said = re.search(r"it: 1 candidates, 3 rounds take about ([\d.]+) s; at most 9 s", capsys.readouterr().err)
    assert said
    assert 0.8 <= float(said[1]) < 4, "three times the call of warm-up, which a busy machine prolongs"


def test_at_most_is_kept_where_three_rounds_fit() -> None:
    measured = time_interleaved({"a": lambda: time.sleep(0.25)}, 1.2)
    taken_s = [ns / 1e9 for ns in measured["a"].samples_ns]
    assert len(taken_s) in (3, 4)
