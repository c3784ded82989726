import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from commands import measured

from benchmarks.drills import (
    environment_faults,
    mixed_texts,
    server_faults,
    version_faults,
)
from benchmarks.drills.checked_requests import Verdicts
from benchmarks.drills.drill_setup import MODEL, DrillBench, wait_until_right
from benchmarks.faults import DRILLS, faults
from benchmarks.load.published_candidates import edited_config
from benchmarks.measure.result_file import Row
from serving.local_server import Server

pytestmark = [pytest.mark.live, pytest.mark.slow]
HEAL_S = 60.0


PAUSE_S = 0.03
PAUSES_S = {"answers-nan": 0.01, "no-home": 0.01, "slow-probe": 0.1, "two-supervisors": 0.1}  # the last two take long
SHARING = ("slow-probe", "server-killed", "sigterm")  # one server, in this order


class PacedBench(DrillBench):
    """Clients that never pause, and threads that wait busily, would cost more than all servers' starts."""

    pause_s = PAUSE_S
    sharing = False
    running: Server | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        with edited_config(self._repository / MODEL) as config:
            config.parameters["intra_op_thread_count"].string_value = "1"
        return self

    def server(self, repository: Path | None = None) -> AbstractContextManager[Server]:
        if not self.sharing:
            return super().server(repository)
        self.running = self.running or self.enter_context(super().server())
        wait_until_right(self.running)
        return nullcontext(self.running)

    def traffic(self, server: Server, pause_s: float = 0) -> AbstractContextManager[Verdicts]:
        return super().traffic(server, max(pause_s, self.pause_s))


@pytest.fixture(scope="module")
def bench() -> Iterator[PacedBench]:
    with PacedBench() as drill_bench:
        yield drill_bench


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_texts.publish_packed(tmp_path_factory.mktemp("packed"))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_faults, "BEFORE_S", 0.5)
    monkeypatch.setattr(server_faults, "AFTER_S", 0.5)
    monkeypatch.setattr(server_faults, "REQUESTS", 60)
    monkeypatch.setattr(server_faults, "PUBLICATIONS", 2)
    monkeypatch.setattr(mixed_texts, "REQUESTS", 900)
    monkeypatch.setattr(mixed_texts, "KILLS", 2)
    monkeypatch.setattr(mixed_texts, "TEXTS", 300)
    monkeypatch.setattr(server_faults, "ASK_S", 1.0)
    monkeypatch.setattr(environment_faults, "SETTLE_S", 1.0)
    monkeypatch.setattr(version_faults, "SETTLE_S", 1.0)
    monkeypatch.setattr(environment_faults, "HELD_S", 1.0)
    monkeypatch.setattr(environment_faults, "STANDSTILLS_S", (3.0,))  # longer than a probe's second


def run(bench: PacedBench, name: str) -> Row:
    bench.pause_s, bench.sharing = PAUSES_S.get(name, PAUSE_S), name in SHARING
    return DRILLS[name](bench)


@pytest.mark.parametrize("name", ["answers-nan", "disk-full", "clock-jump", "two-supervisors", "slow-probe"])
def test_the_supervisor_makes_no_fault_worse(bench: PacedBench, name: str) -> None:
    row = run(bench, name)
    if "left_out" in row:
        pytest.skip(str(row["left_out"]))
    assert (row["wrong"], row["restarts"], row["failed"]) == (0, 0, 0)
    assert row["right"] > 100
    expected = {
        "answers-nan": ("served", ["1"]),
        "clock-jump": ("jumped", True),
        "two-supervisors": ("third_blocked", True),
    }
    key, value = expected.get(name, ("wrong", 0))
    assert row[key] == value


def test_a_fault_ends_unattended_with_no_wrong_answer_and_the_soak_runs(
    bench: PacedBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.faults.DrillBench", lambda: nullcontext(bench))
    bench.pause_s, bench.sharing = PAUSE_S, True
    words = ("--scenario", "server-killed", "--hours", 0.001)
    killed, soak = measured(faults, tmp_path / "faults.json", *words)[1]["rows"]
    assert (killed["scenario"], killed["wrong"]) == ("server-killed", 0)
    assert killed["failed"] > 0, "the fault was real"
    assert killed["recovery_s"] < HEAL_S
    assert (soak["scenario"], soak["hours"], soak["wrong"], soak["failed"]) == ("soak", 0.001, 0, 0)
    assert soak["right"] > 20
    assert {"memory_mb_per_hour", "descriptors_per_hour"} <= soak.keys()


def test_sigterm_leaves_no_orphan(bench: PacedBench) -> None:
    row = run(bench, "sigterm")
    assert (row["wrong"], row["failed"], row["orphans"]) == (0, 0, 0)
    assert row["stopped_s"] < 6


def test_publications_fail_nothing_and_hold_up_no_answer(bench: PacedBench) -> None:
    row = run(bench, "publish")
    assert (row["wrong"], row["failed"], row["refused"]) == (0, 0, 0)
    assert row["right"] > 100


def test_slow_connections_to_the_page_keep_nobody_out(bench: PacedBench) -> None:
    row = run(bench, "slow-connections")
    assert (row["connections"], row["failed"]) == (500, 0)
    assert row["right"] > 0


def test_no_text_gets_another_texts_answer_while_a_process_dies(
    bench: PacedBench, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copied(folder: Path) -> Path:
        """With a delay in which requests meet, however seldom busy cores let clients send."""
        shutil.copytree(packed.parent, folder, dirs_exist_ok=True)
        with edited_config(folder / "models" / mixed_texts.MODEL) as config:
            config.dynamic_batching.max_queue_delay_microseconds = 5_000
        return folder / packed.name

    monkeypatch.setattr(mixed_texts, "publish_packed", copied)
    row = run(bench, "mixed-texts")
    assert (row["wrong"], row["swapped"]) == (0, 0)
    assert row["failed"] > 0, "the faults were real"
    assert row["right"] > 800
    assert row["texts_a_run"] > 2, "the server joined none"  # at most 1.1 have the same length by chance


def test_a_swap_would_be_seen(packed: Path) -> None:
    texts = mixed_texts.Texts(packed)
    assert texts.questions[0].is_right(texts.answers[0])
    assert not texts.questions[0].is_right(texts.answers[1])
    assert texts.swapped == 1
    off = {name: answer + np.float32(0.01) for name, answer in texts.answers[0].items()}
    assert (texts.questions[0].is_right(off), texts.swapped) == (False, 1)


@pytest.mark.parametrize("name", ["no-home", "few-descriptors"])
def test_a_poor_machine_is_served(bench: PacedBench, name: str) -> None:
    row = run(bench, name)
    assert (row["wrong"], row["right"] > 100) == (0, True)
    if name == "few-descriptors":
        assert row["start_refused"]
        assert row["log_bytes"] < 1_000_000, "417 MB a minute without a bound"
