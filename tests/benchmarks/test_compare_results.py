import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import told

from benchmarks.report import report
from benchmarks.reporting.compare_results import MIN_ROUNDS, ratio_of_runs, verdict

MACHINE = {
    **{"cpu": "A CPU", "cores": 2, "threads": 2, "device": "cpu", "load_1min": 0.1, "system": "Linux"},
    **{"python": "3.11", "packages": {"torch": "2.13.0", "onnxruntime": "1.31.1"}},
}
run = partial(told, report, "compare")
Noise = Callable[[np.random.Generator, int], Any]


def samples_ns(median_ms: float, seed: int = 0, rounds: int = 15) -> list[int]:
    spread = np.random.default_rng(seed).uniform(-0.02, 0.02, rounds)
    return [round(1e6 * median_ms * (1 + each)) for each in spread - np.median(spread)]


def row(median_ms: float, model: str = "vitbn", **fields: object) -> dict[str, object]:
    times = {f"p{percent}_ms": median_ms for percent in (50, 90, 99)}
    return {"model": model, "samples_ns": samples_ns(median_ms), **times, **fields}


def write(path: Path, *rows: dict[str, object], machine: object = MACHINE, **fields: object) -> Path:
    origin = {"command": "python benchmarks/it.py", "commit": "abc1234", "date": "2026-11-24T10:00:00+00:00"}
    path.write_text(json.dumps({**origin, "machine": machine, "limits": None, "rows": rows, **fields}))
    return path


def line(output: str, name: str) -> str:
    (found,) = [line for line in output.splitlines() if line.startswith(name)]
    return found


def test_what_is_faster_slower_and_noise(tmp_path: Path) -> None:
    before = write(tmp_path / "before.json", row(20.0), row(30.0, "vit"))
    after = write(tmp_path / "after.json", row(10.0), row(30.0, "vit"))
    code, output = run(before, after)
    assert code == 0
    assert "faster" in line(output, "vitbn")
    assert "2.00 (" in line(output, "vitbn")
    assert "same within noise" in line(output, "vit ")
    assert "slower" in line(run(after, before)[1], "vitbn")


def test_below_ten_rounds_nobody_can_tell(tmp_path: Path) -> None:
    few = [row(ms, samples_ns=samples_ns(ms, rounds=MIN_ROUNDS - 1)) for ms in (20.0, 10.0)]
    before, after = (write(tmp_path / f"{i}.json", each) for i, each in enumerate(few))
    assert "cannot tell: 9 rounds, 10 wanted" in run(before, after)[1]


def independent(generator: np.random.Generator, rounds: int) -> Any:
    return 1 + 0.05 * generator.standard_normal(rounds)


def with_outliers(generator: np.random.Generator, rounds: int) -> Any:
    return 1 + 0.05 * np.abs(generator.standard_cauchy(rounds))


def drifting(generator: np.random.Generator, rounds: int) -> Any:
    """Neighbours correlate by a half."""
    noise = generator.standard_normal(rounds)
    for i in range(1, rounds):
        noise[i] += 0.5 * noise[i - 1]
    return 1 + 0.03 * noise


@pytest.mark.parametrize("noise", [independent, with_outliers, drifting])
@pytest.mark.parametrize("rounds", [10, 30])
def test_two_runs_of_one_program_rarely_differ(noise: Noise, rounds: int) -> None:
    wrong = 0
    for seed in range(150):
        generator = np.random.default_rng(seed)
        ratio = ratio_of_runs(*(100 * noise(generator, rounds) for _ in range(2)))
        wrong += verdict(ratio, rounds) != "same within noise"
    assert wrong / 150 <= 0.02


def test_a_real_change_is_seen() -> None:
    """Of 15 % with a noise of 5 %."""
    seen = 0
    for seed in range(50):
        generator = np.random.default_rng(seed)
        before, after = independent(generator, 30), 0.85 * independent(generator, 30)
        seen += verdict(ratio_of_runs(before, after), 30) == "faster"
    assert seen >= 45


def test_rows_that_only_one_has(tmp_path: Path) -> None:
    before = write(tmp_path / "a.json", row(1.0), row(1.0, "cnn"))
    after = write(tmp_path / "b.json", row(1.0), row(1.0, "vit"), row(1.0, batch=64))
    output = run(before, after)[1]
    assert (output.count("only before"), output.count("only after")) == (1, 2)


def test_other_machines_and_versions_and_an_interruption_are_warned_of(tmp_path: Path) -> None:
    before, other = write(tmp_path / "a.json", row(1.0)), MACHINE | {"cpu": "Another", "packages": {"torch": "2.14.0"}}
    after = write(tmp_path / "b.json", row(1.0), machine=other, interrupted=True)
    code, output = run(before, after)
    assert code == 0
    assert "Warning: cpu: A CPU before, Another after" in output
    assert "Warning: torch: 2.13.0 before, 2.14.0 after" in output
    assert "Warning: onnxruntime: 1.31.1 before, not there after" in output
    assert f"Warning: {after}: interrupted\n" in output


def test_results_without_common_rows(tmp_path: Path) -> None:
    before = write(tmp_path / "a.json", row(1.0))
    after = write(tmp_path / "b.json", {"scenario": "sigterm", "sent": 5})
    assert run(before, after) == (
        1,
        f"Error: {after}: expected rows with samples that are also in {before}, found none\n",
    )


def test_a_file_of_another_form(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"study": "depths"}')
    code, output = run(path, path)
    assert code == 1
    assert output.startswith(f"Error: {path}: expected the form of run.schema.json")
