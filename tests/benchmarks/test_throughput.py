"""The server under load: a short run of NVIDIA's perf_analyzer against the real server, and what must not be timed."""

import json
import os
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner, Result

from benchmarks import throughput as module
from benchmarks.throughput import TOOL, throughput


@pytest.fixture
def perf_analyzer() -> None:
    if not (TOOL / "bin" / "perf_analyzer").is_file():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no perf_analyzer here: make perf_analyzer")


def run(*arguments: object) -> Result:
    options = ("--model", "vitbn-tiny", "--seconds", 3, "--rounds", 1, *arguments)
    return CliRunner().invoke(throughput, [str(option) for option in options])


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.usefixtures("perf_analyzer")
@pytest.mark.parametrize(
    "options", [(), ("--protocol", "http", "--shared-memory")], ids=["grpc", "http, shared memory"]
)
def test_a_short_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = tmp_path / "throughput.json"
    result = run("--way", "2x1", "--batch", 64, "--in-flight", 4, *options, "--json", path)
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert written["environment"]["packages"]["onnxruntime"]
    (row,) = written["rows"]
    assert (row["batch"], row["in_flight"], row["instances"], row["threads"]) == (64, 4, 2, 1)
    assert row["images_per_s"] == median(sample["images_per_s"] for sample in row["samples"]) > 0
    assert row["of_in_process"] == pytest.approx(row["images_per_s"] / row["in_process_images_per_s"])
    assert row["added_ms"] == pytest.approx(row["p50_ms"] - row["in_process_p50_ms"])
    assert 0 < row["p50_ms"] <= row["p99_ms"]
    # By Little's law, what is in flight is what comes out in a second times how long it took.
    assert row["images_per_s"] / 64 * row["samples"][0]["p50_ms"] / 1000 == pytest.approx(4, rel=0.7)
    assert f"{row['images_per_s']:,.0f}" in result.output


@pytest.mark.live
@pytest.mark.usefixtures("perf_analyzer")
def test_a_server_that_answers_otherwise_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._digits
    digits = iter([real(), 255 - real()])  # what this process is asked, and what the server is
    monkeypatch.setattr(module, "_digits", lambda: next(digits, real()))
    monkeypatch.setattr(module, "_contestants", lambda *arguments: {})
    result = run("--way", "1x0", "--json", tmp_path / "throughput.json")
    assert result.exit_code == 1
    assert "1x0: expected logits within 1e-04 of those in process, found" in result.output
    assert not list(tmp_path.iterdir())


def test_without_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOOL", tmp_path)
    with pytest.raises(module.Failed, match="make perf_analyzer fetches it"):
        module._by_perf_analyzer([], tmp_path / "report.csv")


@pytest.mark.parametrize("way", ["2", "2x", "x", "axb", "1x2x3"])
def test_a_way_that_is_none(way: str) -> None:
    result = run("--way", way)
    assert result.exit_code == 2
    assert f"expected INSTANCESxTHREADS, such as 2x1, found {way}" in result.output
