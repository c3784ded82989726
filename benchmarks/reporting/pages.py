"""Fills the tables of pages from results.

In a page `<!-- table NAME FILE… -->` stands before the table NAME of tables/, made from the results FILE…, and
`<!-- origin FILE -->` before the line that says how the result was measured. `<!-- end -->` stands after both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.measure.result_file import Run, read
from benchmarks.reporting.tables import TABLES
from benchmarks.reporting.tables.table import Table, measured_rows

ROOT = Path(__file__).parents[2]
TEMPLATE, GPU_TEMPLATE = (Path(__file__).with_name(name) for name in ("report.md", "report_gpu.md"))
GPU_PACKAGES = ("torch", "onnxruntime-gpu", "tensorrt")  # other versions than those of the CPU's results
OF_A_GPU = "gpu"  # folder of a GPU's results, in the folder of the results
PAGES = ("README.md", "docs/results.md", "docs/rewrite.md", "docs/scale.md")
MARKED = re.compile(r"<!-- (\w+) ([^>]*?) -->\n.*?<!-- end -->", re.DOTALL)
CONSOLE = re.compile(r"(\$ python benchmarks/latency\.py --batch 5000\n).*?(\n```)", re.DOTALL)
# Function in page_plots.py, and name of the PNG -> file of its result.
PICTURES = {name: f"{name}.json" for name in ("frontier", "garments", "foreign")} | {"worth": "rewrites.json"}


class PageError(Exception):
    """The message names the page."""


def fill(page: str, makers: Mapping[str, Callable[[Sequence[str]], str]]) -> str:
    """The page with new blocks. `makers`: kind -> function from the marker's words to the text of the block.

    Blocks of other kinds stay as they are.
    """

    def block(match: re.Match[str]) -> str:
        kind, words = match[1], match[2]
        if kind not in makers:
            return match[0]
        return "\n".join(filter(None, [f"<!-- {kind} {words} -->", makers[kind](words.split()), "<!-- end -->"]))

    return MARKED.sub(block, page)


def marker_words(page: str, kind: str) -> list[str]:
    """The words of each marker of that kind, joined by spaces."""
    return [match[2] for match in MARKED.finditer(page) if match[1] == kind]


def read_runs(folder: Path) -> dict[str, Run]:
    """File name -> run. Raises RunError for a file of another form, PageError for a folder without results."""
    runs = {path.name: read(path) for path in sorted(folder.glob("*.json"))}
    if not runs:
        raise PageError(f"{folder}: expected JSON files of the benchmarks, found none; `make benchmarks` writes them")
    return runs


def filled(name: str, page: str, runs: Mapping[str, Run]) -> str:
    """The text `page` with its tables. `name`: of the page, for messages. `runs`: file name -> run.

    Raises PageError for a marker that names no table.
    """

    def table(words: Sequence[str]) -> str:
        if len(words) < 2 or words[0] not in TABLES:
            raise PageError(f"{name}: expected `table NAME FILE` with a name out of {', '.join(TABLES)}, found {words}")
        return _table(words[0], words[1:], runs)

    return fill(page, {"table": table, "origin": lambda words: "\n".join(_origin(words[0], runs))})


def _table(name: str, files: Sequence[str], runs: Mapping[str, Run]) -> str:
    """The table's text; empty if a result is missing or holds no measured row."""
    if all(file in runs and (name == "left_out" or measured_rows(runs[file])) for file in files):
        table = TABLES[name](*(runs[file] for file in files))
        return table.markdown if isinstance(table, Table) else table
    return ""


def _origin(file: str, runs: Mapping[str, Run]) -> Iterator[str]:
    """The lines on how a result was measured: file, command, commit, date, machine, and any doubt about it."""
    if file not in runs:
        yield f"**Not measured**: there is no `{file}`."
        return
    run = runs[file]
    machine = run.machine
    facts = [f"`{file}`", f"`{run.command}`" if run.command else "", f"commit {run.commit}" if run.commit else ""]
    facts.append(str(run.date)[:10] if run.date else "")
    facts += [f"{machine['threads']} of {machine['cores']} cores of {machine['cpu']}"] if machine["cpu"] else []
    facts += ["with " + ", ".join(machine["instruction_sets"])] if machine.get("instruction_sets") else []
    if machine["device"] not in (None, "cpu"):
        versions = [f"{name} {machine['packages'][name]}" for name in GPU_PACKAGES if name in machine["packages"]]
        facts.append(", ".join([machine["device"], f"CUDA {machine['cuda']}", *versions]))
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
    """The README `page` with the output that `latency.py --batch 5000` would print for the result."""
    from benchmarks.reporting.tables.latencies import batch_table, limits_line

    run = runs.get("latency-5000.json")
    if not run or not run.limits:
        return page
    output = f"{batch_table(measured_rows(run))}\n{limits_line(run.limits)}"
    return CONSOLE.sub(lambda match: f"{match[1]}{output}{match[2]}", page)


def contents(folder: Path) -> dict[Path, str]:
    """Path -> text: report.md in `folder`, and the project's pages if `folder` holds the committed results."""
    runs = read_runs(folder)
    on_a_gpu = any(run.machine["device"] not in (None, "cpu") for run in runs.values())
    template = GPU_TEMPLATE if on_a_gpu else TEMPLATE
    texts = {folder / "report.md": filled(template.name, template.read_text("utf-8"), runs)}
    if folder.resolve() == (ROOT / "benchmarks" / "results").resolve():
        texts |= contents(folder / OF_A_GPU)
        runs |= {f"{OF_A_GPU}/{name}": run for name, run in read_runs(folder / OF_A_GPU).items()}
        for name in PAGES:
            text = filled(name, (ROOT / name).read_text("utf-8"), runs)
            texts[ROOT / name] = console(text, runs) if name == "README.md" else text
    return texts


def pictures(folder: Path) -> Iterator[tuple[Path, Callable[[], bytes]]]:
    """The path of each picture whose result is in `folder`, and a function that draws the picture as PNG."""
    from benchmarks.reporting import page_plots

    runs = read_runs(folder)
    for name, file in PICTURES.items():
        if file in runs and measured_rows(runs[file]):
            yield folder / f"{name}.png", partial(getattr(page_plots, name), runs[file])
