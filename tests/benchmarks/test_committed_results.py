import re
import shlex
import subprocess
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.reporting import plots
from benchmarks.reporting.build import TITLE, page
from benchmarks.reporting.page import Block, Picture, markdown
from benchmarks.reporting.sources import Sources, find

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
BY_ITSELF = {"conditions.json"}  # made with its own page
ONCE_MORE = {"accuracy.json", "engines.json", "overhead.json"}  # older than recorded commands


@pytest.fixture(scope="module")
def sources() -> Sources:
    return find(RESULTS)


@pytest.fixture(scope="module")
def drawn(sources: Sources) -> tuple[list[Block], dict[str, list[int]]]:
    """The page; ticks of each numeric axis."""
    counted: dict[str, list[int]] = {}

    def count(name: str, caption: str, figure: Figure) -> Picture:
        figure.draw_without_rendering()  # the layout decides how many ticks fit
        axes = [axis for each in figure.axes for axis in (each.xaxis, each.yaxis)]
        numeric = [axis for axis in axes if all(text.get_text()[:1].isdigit() for text in axis.get_ticklabels())]
        counted[name] = [_visible(axis) for axis in numeric]
        return Picture(name, caption, b"", b"")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "picture", count)
        return page(sources), counted


def _visible(axis: object) -> int:
    low, high = sorted(axis.get_view_interval())
    return sum(low <= place <= high for place in axis.get_majorticklocs())


@pytest.mark.slow
def test_every_axis_has_three_ticks(drawn: tuple[list[Block], dict[str, list[int]]]) -> None:
    blocks, ticks = drawn
    assert len(ticks) == sum(isinstance(block, Picture) for block in blocks) >= 15
    for name, counts in ticks.items():
        assert counts, name
        assert min(counts) >= 3, name


def made_by_make() -> dict[str, str]:
    """Output file -> command, with FILE and DIR in place of its files."""
    dry = ["make", "--dry-run", "--always-make", "benchmarks", "PYTHON=true"]
    lines = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout.replace("\\\n", " ")
    made = {}
    for line in re.findall(r"^python benchmarks/.*$", lines, re.MULTILINE):
        words = shlex.split(line)
        if "report.py" not in words[1]:
            target = words[-1].removeprefix("benchmarks/results.new").lstrip("/")
            kind = "FILE" if words[-2] == "--json" else "DIR"
            command = " ".join([*words[:-1], kind])
            made[{"studies/frontier": "studies/frontier/frontier-measured.json"}.get(target, target)] = command
    return made


def test_a_rerun_makes_every_file_that_the_page_reads_and_no_other(sources: Sources) -> None:
    on_cpus = {file.name for file in sources.files if not file.name.startswith("gpu/")}  # make benchmarks-gpu
    assert set(made_by_make()) - {""} == on_cpus
    assert made_by_make()[""].startswith("python benchmarks/conditions.py")


def test_a_rerun_asks_for_what_was_measured(sources: Sources) -> None:
    """The Makefile omits options with their default."""
    made = made_by_make()
    for file in sources.files:
        if file.name not in ONCE_MORE and file.name in made:
            asked, recorded = (set(text.split()) for text in (made[file.name], file.content["command"]))
            assert asked - {"--sharing", "--json", "FILE", "500", "1000", "2000"} <= recorded, file.name


def test_a_rerun_replaces_the_old_results_as_a_whole() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\nbenchmarks:")[1].split("\nclean:")[0].splitlines()
    removed = next(i for i, line in enumerate(recipe) if line.startswith("\trm -f $(RESULTS)/*.json"))
    assert recipe[1] == "\trm -rf $(NEW)"
    assert all("$(RESULTS)" not in line for line in recipe[:removed]), "nothing old is touched before all is measured"


def test_no_file_is_an_orphan(sources: Sources) -> None:
    tracked = subprocess.run(["git", "ls-files", "."], cwd=RESULTS, capture_output=True, text=True, check=True).stdout
    top = {name for name in tracked.splitlines() if "/" not in name and (RESULTS / name).exists()}
    assert {name for name in top if name.endswith(".json")} - BY_ITSELF <= {file.name for file in sources.files}
    shown = set(re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (RESULTS / "report.md").read_text()))
    assert {name for name in top if name.endswith(".png")} == shown
    assert not {name for name in top if name.endswith((".svg", ".html"))}, "built by make report"


@pytest.mark.slow
def test_the_committed_page_is_that_of_the_results(drawn: tuple[list[Block], dict[str, list[int]]]) -> None:
    blocks, _ = drawn
    assert markdown(TITLE, blocks) == (RESULTS / "report.md").read_text()
