from pathlib import Path

import pytest
import sample_results as sample
from click.testing import CliRunner

from benchmarks.measure.timing import Ratio
from benchmarks.report import report
from benchmarks.reporting.compare import ratio_of_runs, verdict


def run(*paths: Path) -> tuple[int, str]:
    result = CliRunner().invoke(report, ["compare", *map(str, paths)])
    return result.exit_code, result.output


def line(output: str, name: str) -> str:
    (found,) = [line for line in output.splitlines() if line.startswith(name)]
    return found


def test_what_is_faster_slower_and_noise(tmp_path: Path) -> None:
    before = sample.write(tmp_path / "before.json", sample.rewrites())
    after = sample.write(tmp_path / "after.json", sample.rewrites(faster=2.0))
    code, output = run(before, after)
    assert code == 0
    assert "faster" in line(output, "depth 6, vitbn, all, best")
    assert "2.00 (" in line(output, "depth 6, vitbn, all, best")
    assert "same within noise" in line(output, "depth 6, vitbn, plain, best")
    assert "slower" in line(run(after, before)[1], "depth 1, vit, all, one call")


@pytest.mark.parametrize("make", [make for make in sample.EVERY if make is not sample.accuracy])
def test_every_row_of_every_benchmark_is_the_same_as_itself(make: object, tmp_path: Path) -> None:
    """Operators have only medians."""
    path = sample.write(tmp_path / "a.json", make())
    code, output = run(path, path)
    if make is sample.operators:
        assert "expected rows with samples that are also in" in output
        return
    assert code == 0
    rows = output.splitlines()[2:]
    assert rows
    assert all("same within noise" in row for row in rows)
    assert len({row.split("same within")[0] for row in rows}) == len(rows)


def test_results_that_name_no_engine_are_compared_with_those_that_do(tmp_path: Path) -> None:
    old, new, other = (sample.throughput() for _ in range(3))
    for result, engine in ((new, "onnxruntime"), (other, "tensorrt")):
        for row in result["rows"]:
            row |= {"engine": engine, "precision": "fp32", "shared_memory": "none"}
    paths = [sample.write(tmp_path / f"{i}.json", result) for i, result in enumerate((old, new, other))]
    assert all("same within noise" in row for row in run(*paths[:2])[1].splitlines()[2:])
    assert "expected rows with samples that are also in" in run(paths[0], paths[2])[1]


def test_the_interval_is_that_of_runs_apart() -> None:
    samples = [ns / 1e6 for ns in sample.samples_ns(100.0, seed=1, rounds=15)]
    other = [ns / 1e6 for ns in sample.samples_ns(100.0, seed=2, rounds=15)]
    assert verdict(ratio_of_runs(samples, [1.1 * ms for ms in other])) == "slower"
    assert verdict(ratio_of_runs(samples, [0.9 * ms for ms in other])) == "faster"
    assert verdict(ratio_of_runs(samples, [1.001 * ms for ms in other])) == "same within noise"
    assert ratio_of_runs(samples, other) == ratio_of_runs(samples, other)


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(1.01, 2, "faster"), (0.5, 0.99, "slower"), (0.9, 1.1, "same within noise")]
)
def test_verdict(low: float, high: float, expected: str) -> None:
    assert verdict(Ratio(1.0, low, high)) == expected


def test_rows_that_only_one_has(tmp_path: Path) -> None:
    before = sample.write(tmp_path / "a.json", sample.throughput(["vitbn", "cnn"]))
    after = sample.write(tmp_path / "b.json", sample.throughput(["vitbn", "vit"]))
    output = run(before, after)[1]
    assert output.count("only before") == output.count("only after") == 2


def test_other_machines_and_versions_are_warned_of(tmp_path: Path) -> None:
    before = sample.write(tmp_path / "a.json", sample.engines())
    after = sample.write(tmp_path / "b.json", sample.engines(), cpu="Another", packages={"torch": "2.14.0"})
    output = run(before, after)[1]
    assert "Warning: cpu: A CPU before, Another after" in output
    assert "Warning: torch: 2.13.0 before, 2.14.0 after" in output
    assert "Warning: onnxruntime: 1.31.1 before, not there after" in output


def test_an_interrupted_result_is_warned_of(tmp_path: Path) -> None:
    before = sample.write(tmp_path / "a.json", sample.engines())
    after = sample.write(tmp_path / "b.json", {**sample.engines(), "interrupted": True})
    code, output = run(before, after)
    assert (code, f"Warning: {after}: interrupted\n" in output) == (0, True)


@pytest.mark.parametrize("rows", [["x"], [{"samples": [{"p50_ms": None}]}], [{"samples": [{}]}], [{"samples_ns": 5}]])
def test_rows_of_another_form(rows: list[object], tmp_path: Path) -> None:
    path = sample.write(tmp_path / "a.json", {**sample.throughput(), "rows": rows})
    code, output = run(path, path)
    assert (code, output.count("\n")) == (1, 1)
    assert output.startswith(f"Error: {path}: expected rows with their samples, found ")


def test_files_of_different_benchmarks(tmp_path: Path) -> None:
    before = sample.write(tmp_path / "a.json", sample.engines())
    after = sample.write(tmp_path / "b.json", sample.overhead())
    code, output = run(before, after)
    assert code == 1
    assert output == f"Error: {after}: expected a result of engines as {before} is, found overhead\n"


def test_a_result_that_counts_its_rows() -> None:
    bulk = Path(__file__).parents[2] / "benchmarks/results/bulk.json"
    assert run(bulk, bulk) == (1, f"Error: {bulk}: expected rows with samples that are also in {bulk}, found none\n")


def test_a_file_that_is_no_result(tmp_path: Path) -> None:
    path = sample.write(tmp_path / "a.json", {"study": "depths"})
    code, output = run(path, path)
    assert code == 1
    assert output.startswith(f"Error: {path}: expected the result of a benchmark")
