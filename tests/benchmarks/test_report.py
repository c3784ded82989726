import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from commands import invoke

from benchmarks.foreign import foreign
from benchmarks.measure.foreign_networks import NETWORKS
from benchmarks.measure.progress import one_line
from benchmarks.measure.result_file import Run, RunError, read
from benchmarks.report import report
from benchmarks.reporting import pages
from benchmarks.reporting.pages import PageError, contents, filled, pictures, read_runs
from benchmarks.reporting.tables.latencies import batch_table, by_model, latency
from benchmarks.reporting.tables.servers import machines
from benchmarks.reporting.tables.table import Table, find_row

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
APART = {"norms.json", "decoders.json", "packed.json", "texts.json"}  # what `make benchmarks` leaves out
STEADY = {"steady.json"}  # measured first
build = partial(invoke, report, "build")
FILES = sorted(RESULTS.glob("*.json"))
STUDIES = sorted(RESULTS.glob("studies/*/*.json"))


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return read_runs(RESULTS)


def test_a_committed_result_is_complete_and_has_no_doubt(runs: dict[str, Run]) -> None:
    assert [name for name, run in runs.items() if run.interrupted or run.doubt] == []  # without them: a doubt


def test_a_result_in_doubt_is_marked_on_the_page(runs: dict[str, Run]) -> None:
    marked = {"engines.json": replace(runs["engines.json"], doubt="its date was not recorded")}
    page = filled("page.md", "<!-- origin engines.json -->\n<!-- end -->", marked)
    assert "**To be measured again**: its date was not recorded." in page


def test_the_committed_pages_are_those_of_the_results() -> None:
    assert Table([{"a": "1"}]).plain  # a table of a command before leaves the pages' tables alone
    result = build("--check")
    assert result.exit_code == 0, result.output


def test_a_changed_figure_is_noticed(tmp_path: Path) -> None:
    for path in FILES:
        shutil.copy(path, tmp_path)
    assert build(tmp_path).exit_code == 0
    page = tmp_path / "report.md"
    assert build("--check", tmp_path).exit_code == 0
    page.write_text(re.sub(r"(\| vitbn +\| plain +\| +[\d.]+ \| +[\d,]+\.)\d", r"\g<1>x", page.read_text()))
    result = build("--check", tmp_path)
    assert result.exit_code == 1
    assert f"{page}: expected the tables of the results, found others; run make report" in result.output


def test_every_result_is_on_the_page_and_every_picture_on_a_page(runs: dict[str, Run]) -> None:
    page = (RESULTS / "report.md").read_text()
    assert all(f"<!-- origin {name} -->\n`{name}`; " in page for name in runs)
    assert all(f"`{run.command}`" in page for run in runs.values() if run.command)
    texts = [(ROOT / name).read_text() for name in pages.PAGES]
    drawn = {path.name for path, _ in pictures(RESULTS)}
    assert drawn == {path.name for path in RESULTS.glob("*.png")}
    assert all(any(f"benchmarks/results/{name})" in text for text in texts) for name in drawn)


def test_a_page_says_how_many_slower_rounds_a_result_left_out(runs: dict[str, Run]) -> None:
    run = runs["engines.json"]
    slow = replace(run, rows=[{**row, "slower_rounds": n} for n, row in enumerate(run.rows)])
    page = filled("page.md", "<!-- origin engines.json -->\n<!-- end -->", {"engines.json": slow})
    assert f"; up to {len(run.rows) - 1} rounds left out in which the machine was slower." in page


def test_every_study_is_of_a_clean_tree() -> None:
    studies = {path.parent.name: json.loads(path.read_text()) for path in STUDIES}
    commits = {name: study.get("environment", study)["commit"] for name, study in studies.items()}
    assert not {name for name, commit in commits.items() if commit.endswith("-dirty")}


def test_the_results_stay_small() -> None:
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) <= 3.3e6


def rerun() -> str:
    dry = ["make", "--dry-run", "--always-make", "benchmarks", "PYTHON=true"]
    return subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_a_rerun_measures_every_result_and_no_other(runs: dict[str, Run]) -> None:
    assert set(re.findall(r"results\.new/([\w-]+\.json)", rerun())) == set(runs) - APART | STEADY


def test_a_rerun_takes_75_minutes_at_most(runs: dict[str, Run]) -> None:
    assumed = re.findall(r"^SECONDS_(\S+) := (\d+)$", (ROOT / "Makefile").read_text(), re.M)
    assert {f"{name}.json" for name, _ in assumed} == set(runs) - APART - STEADY
    assert sum(int(seconds) for _, seconds in assumed) <= 75 * 60


@pytest.mark.slow
def test_an_interrupted_rerun_goes_on(tmp_path: Path) -> None:
    """A shell script stands in for the benchmarks, of which the second fails at first."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("benchmarks/results", ".venv/bin", ".perf_analyzer/bin"):
        (tmp_path / name).mkdir(parents=True)
    stamps = (".venv/installed", ".venv/foreign", ".perf_analyzer/bin/perf_analyzer")
    for name in ("pyproject.toml", "constraints.txt", *stamps):
        (tmp_path / name).touch()
    program = tmp_path / ".venv/bin/python"
    failing = "[ -e again ] || case $* in *5000*) exit 1;; esac"
    written = "for last; do :; done; case $last in *.part) echo '{}' > $last;; esac"
    program.write_text(f"#!/bin/sh\n{failing}\n{written}\n")
    program.chmod(0o755)
    first = subprocess.run(["make", "benchmarks"], cwd=tmp_path, capture_output=True, text=True)
    assert first.returncode != 0
    written = {path.name for path in (tmp_path / "benchmarks/results.new").iterdir()}
    assert written == {"latency.json", *STEADY}
    (tmp_path / "again").touch()
    second = subprocess.run(["make", "benchmarks"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.search(r"\[minute 6 of \d\d\] latency-5000", second.stdout)
    assert "] latency\n" not in second.stdout
    assert (
        len(list((tmp_path / "benchmarks/results").glob("*.json")))
        == len(set(FILES) - {RESULTS / name for name in APART | STEADY}) + 1
    )


def test_a_page_names_no_command_that_the_rerun_does_not_run() -> None:
    run = {*re.findall(r"python (benchmarks/\S+\.py.*?) --json", rerun()), "benchmarks/latency.py --preset norms DIR"}
    texts = [(ROOT / name).read_text() for name in pages.PAGES]
    lines = (line for text in texts for line in re.findall(r"^ {4}vitbn bench (.*) --json FILE$", text, re.M))
    named = {re.sub(r"^(\w+)", r"benchmarks/\1.py", line) for line in lines}
    assert named
    assert named <= run


def test_cores_for_a_rate_are_those_of_the_measured_machine(runs: dict[str, Run]) -> None:
    run = runs["throughput.json"]
    wider = replace(run, machine={**run.machine, "threads": 2 * run.machine["threads"]})
    rate = max(find_row(run.rows, model="vitbn", batch=64, in_flight=8, instances=n)["images_per_s"] for n in (1, 2))
    for result in (run, wider):
        threads = result.machine["threads"]
        assert f"images/s, {threads} cores" in machines(result).markdown
        assert f" {rate / threads:,.0f} |" in machines(result).markdown


def test_a_page_says_what_was_not_measured(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "rewrites.json", tmp_path)
    text = contents(tmp_path)[tmp_path / "report.md"]
    origins = set(re.findall(r"<!-- origin (\S+) -->", text))
    missing = set(re.findall(r"\*\*Not measured\*\*: there is no `([^`]+)`", text))
    assert missing == origins - {"rewrites.json"}


@pytest.mark.parametrize(("name", "field"), [("latency", "gemm_share"), ("throughput", "server_queue_ms")])
def test_a_row_without_a_field_of_its_kind_is_refused(name: str, field: str, runs: dict[str, Run]) -> None:
    run = runs[f"{name}.json"]
    row = {key: value for key, value in run.rows[0].items() if key != field}
    with pytest.raises(RunError, match=f"'{field}' is a required property"):
        replace(run, rows=[row]).text()


def test_a_run_without_date_commit_or_percentiles_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    content = json.loads((RESULTS / "rewrites.json").read_text())
    for wrong in ({"date": None}, {"commit": "abc1234-dirty"}, {"rows": [{"samples_ns": [1, 2]}]}, {"notes": ""}):
        path.write_text(json.dumps(content | wrong))
        with pytest.raises(RunError, match=r"a\.json: expected the form of run\.schema\.json"):
            read(path)
    path.write_text(json.dumps(content | {"date": None, "doubt": "its date was not recorded"}))
    assert read(path).date is None


def test_a_marker_that_names_no_table_is_refused(runs: dict[str, Run]) -> None:
    with pytest.raises(PageError, match=r"page\.md: expected `table NAME FILE` with a name out of rewrites, "):
        filled("page.md", "<!-- table nonsense rewrites.json -->\n<!-- end -->", runs)


def test_a_row_of_a_gpu_has_three_times_and_its_state(runs: dict[str, Run]) -> None:
    state = {"sm_mhz": [1900, 1950, 1980], "power_w": [400.0, 500.0, 600.0], "temperature_c": [50, 55, 60]}
    row = dict(runs["latency.json"].rows[0]) | {"device": "cuda", "device_p50_ms": 0.6, "copies_p50_ms": 0.9}
    row |= {"gpu_state": state | {"rejected": {"hardware thermal": 2}}}
    text = latency(Run(None, None, None, {}, None, [row])).markdown
    shown = [cell.strip() for cell in text.splitlines()[-1].split("|")]
    on_the_card = ["1,900 to 1,980", "400 to 600", "50 to 60", "2"]
    assert shown[-7:-1] == ["0.600", "0.900", *on_the_card]


def test_a_table_says_what_is_missing_and_keeps_text() -> None:
    lines = Table([{"name": "1", "ms": "1.50"}, {"name": "b"}]).markdown.splitlines()
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]] == [["1", "1.50"], ["b", "-"]]


def test_a_foreign_network_without_its_package_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*unused: object) -> None:
        raise ModuleNotFoundError("No module named 'timm'")

    monkeypatch.setattr("benchmarks.foreign.measure", lacks)
    result = invoke(foreign, "--network", "vit-tiny")
    assert result.exit_code == 1
    assert "No module named 'timm'" in result.output


def test_the_page_of_foreign_networks_names_every_network() -> None:
    page = (ROOT / "docs/rewrite.md").read_text()
    for name, network in NETWORKS.items():
        assert re.search(rf"\| {re.escape(network.title)} +\| `{name}` +\|", page)


def test_of_a_model_and_precision_the_first_run_counts() -> None:
    """latency.json has the CNN with other options of ONNX Runtime than cnn.json."""
    first, second = (read(RESULTS / "gpu" / f"{name}.json") for name in ("cnn", "latency"))
    lines = {" ".join(line.split()[1:5]): line.split() for line in by_model(first, second).plain.splitlines()[2:18]}
    assert lines["ONNX Runtime, norms folded"][-1] == "-"
    fastest = find_row(first.rows, batch=5000, runtime="onnx-optimized", precision="fp32")
    assert lines["ONNX Runtime, all rewrites"][-3] == f"{fastest['p50_ms']:.2f}"


def test_an_error_of_cuda_ends_before_the_host() -> None:
    error = RuntimeError("CUDNN failure 3000: CUDNN_STATUS_NOT_SUPPORTED ; GPU=0 ; hostname=vm ; file=batch_norm.cc")
    assert one_line(error) == "RuntimeError: CUDNN failure 3000: CUDNN_STATUS_NOT_SUPPORTED"


def test_a_gpus_state_stands_in_the_title_of_a_terminals_table() -> None:
    run = read(RESULTS / "gpu" / "published.json")
    title, columns, *_ = batch_table([row for row in run.rows if row["model"] == "vitbn"]).splitlines()
    assert "GPU: clock MHz 1,980 to 1,980, power W " in title
    assert "clock" not in columns
