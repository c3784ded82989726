"""Fills the tables of pages from results.

In a page `<!-- table NAME FILE… -->` stands before a table of tables/ and `<!-- origin FILE -->` before the line that
says where its numbers come from; `<!-- end -->` stands behind both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.measure.run import Run, read
from benchmarks.reporting.page_markers import fill
from benchmarks.reporting.tables import TABLES
from benchmarks.reporting.tables.table import Table, measured

ROOT = Path(__file__).parents[2]
TEMPLATE = Path(__file__).with_name("report.md")
PAGES = ("README.md", "docs/results.md", "docs/rewrite.md", "docs/scale.md")
CONSOLE = re.compile(r"(\$ python benchmarks/latency\.py --batch 5000\n).*?(\n```)", re.DOTALL)
PICTURES = {each: f"{each}.json" for each in ("frontier", "garments", "foreign")} | {"worth": "rewrites.json"}


class PageError(Exception):
    """The message names the page."""


def find(folder: Path) -> dict[str, Run]:
    """File name -> run. Raises RunError for a file of another form, PageError for a folder without results."""
    runs = {path.name: read(path) for path in sorted(folder.glob("*.json"))}
    if not runs:
        raise PageError(f"{folder}: expected JSON files of the benchmarks, found none; `make benchmarks` writes them")
    return runs


def filled(name: str, page: str, runs: Mapping[str, Run]) -> str:
    """`page` with its tables; raises PageError for a marker that names no table."""

    def table(words: Sequence[str]) -> str:
        if len(words) < 2 or words[0] not in TABLES:
            raise PageError(f"{name}: expected `table NAME FILE` with a name out of {', '.join(TABLES)}, found {words}")
        return "\n".join(_table(words[0], words[1:], runs))

    return fill(page, {"table": table, "origin": lambda words: "\n".join(_origin(words[0], runs))})


def _table(name: str, files: Sequence[str], runs: Mapping[str, Run]) -> Iterator[str]:
    if all(file in runs and (name == "left_out" or measured(runs[file])) for file in files):
        made = TABLES[name](*(runs[file] for file in files))
        yield made.markdown if isinstance(made, Table) else made


def _origin(file: str, runs: Mapping[str, Run]) -> Iterator[str]:
    if file not in runs:
        yield f"**Not measured**: there is no `{file}`."
        return
    run = runs[file]
    machine = run.machine
    where = [f"{machine['threads']} of {machine['cores']} cores of {machine['cpu']}"] if machine["cpu"] else []
    where += ["with " + ", ".join(machine["instruction_sets"])] if machine.get("instruction_sets") else []
    where += [machine["device"]] if machine["device"] not in (None, "cpu") else []
    facts = [f"`{file}`", f"`{run.command}`" if run.command else "", f"commit {run.commit}" if run.commit else ""]
    facts += [str(run.date)[:10] if run.date else "", *where]
    if run.limits:
        copy = f", copy {run.limits['copy_gb_per_s']:,.1f} GB/s" if "copy_gb_per_s" in run.limits else ""
        facts.append(f"limits of the machine: GEMM {run.limits['gemm_gflops_per_s']:,.0f} GFLOP/s{copy}")
    if slower := max((row.get("slower_rounds", 0) for row in run.rows), default=0):
        facts.append(f"up to {slower} rounds left out in which the machine was slower")
    yield f"{'; '.join(filter(None, facts))}."
    if machine.get("reasons"):
        yield f"**On an unsteady machine**: {'; '.join(machine['reasons'])}."
    if run.doubt:
        yield f"**To be measured again**: {run.doubt}."
    if run.interrupted:
        yield "**Interrupted**: some rows are missing."


def console(page: str, runs: Mapping[str, Run]) -> str:
    """The README's page with the output of `latency.py --batch 5000` that the results give."""
    from benchmarks.reporting.tables.timed_calls import batch_table, limits_line

    run = runs.get("latency-5000.json")
    if not run or not run.limits:
        return page
    shown = f"{batch_table(measured(run))}\n{limits_line(run.limits)}"
    return CONSOLE.sub(lambda match: f"{match[1]}{shown}{match[2]}", page)


def contents(folder: Path) -> dict[Path, str]:
    """report.md in `folder`; for the committed results also the tables of the project's pages."""
    runs = find(folder)
    texts = {folder / "report.md": filled(TEMPLATE.name, TEMPLATE.read_text(), runs)}
    if folder.resolve() == (ROOT / "benchmarks" / "results").resolve():
        for name in PAGES:
            text = filled(name, (ROOT / name).read_text(), runs)
            texts[ROOT / name] = console(text, runs) if name == "README.md" else text
    return texts


def pictures(folder: Path) -> Iterator[tuple[Path, Callable[[], bytes]]]:
    """The path of each picture, and a function that draws it as PNG."""
    from benchmarks.reporting import page_plots

    runs = find(folder)
    for name, file in PICTURES.items():
        if file in runs and measured(runs[file]):
            yield folder / f"{name}.png", partial(getattr(page_plots, name), runs[file])
