import json
from pathlib import Path
from typing import Any

import pytest
from commands import invoke

from benchmarks.measure.measured_network import shipped_network
from benchmarks.measure.result_file import Record
from benchmarks.measure.steadiness import judged
from benchmarks.steady import UNSTEADY, steady

QUIET = {
    "threads": 2,
    "gemm_one_thread": (100.0, 101.0, 99.0),
    "gemm_all_threads": (190.0, 192.0, 188.0),
    "singles_p50_ms": (0.2, 0.201, 0.202),
    "singles_spread": (1.1, 1.2, 1.1),
}


def test_a_quiet_machine_is_steady() -> None:
    assert judged(QUIET)["reasons"] == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"gemm_all_threads": (120.0, 121.0, 119.0)}, "2 threads multiply 1.20 times as fast as one, expected"),
        ({"gemm_one_thread": (100.0, 60.0, 101.0)}, "products of one thread: windows differ by 33%"),
        ({"singles_p50_ms": (0.2, 0.3, 0.21)}, "single images: windows differ by"),
        ({"singles_spread": (1.1, 2.0, 2.0)}, "single images: p90 is 2.00 times p50, expected at most 1.3"),
    ],
)
def test_each_unsteadiness_is_named(changed: dict[str, Any], reason: str) -> None:
    reasons = judged({**QUIET, **changed})["reasons"]
    assert any(line.startswith(reason) for line in reasons), reasons


@pytest.mark.slow
def test_the_command_tells_the_machine_and_later_results_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "benchmarks.measure.measured_network.shipped_network", lambda name: shipped_network("vitbn-tiny")
    )
    written = tmp_path / "steady.json"
    done = invoke(steady, "--seconds", 1, "--json", written)
    row = json.loads(written.read_bytes())["rows"][0]
    assert (done.exit_code == 0) == row["steady"]
    assert done.exit_code in (0, UNSTEADY)
    assert len(row["singles_p50_ms"]) >= 3
    with steady.make_context("steady", []):
        Record(tmp_path / "later.json", 1).update([{"network": "any"}])
    machine = json.loads((tmp_path / "later.json").read_bytes())["machine"]
    assert machine["steady"] == row["steady"]
    assert machine["reasons"] == row["reasons"]
