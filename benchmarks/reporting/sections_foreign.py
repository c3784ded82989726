"""The section about networks of others, and the table of docs/rewrite.md."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.contest.foreign_contestants import OPENVINO_OURS, OPTIMISER, OURS
from benchmarks.measure.timing import Ratio
from benchmarks.reporting import plots
from benchmarks.reporting.page import Block, Table, Text
from benchmarks.reporting.sources import Result, Row, Section, Sources, cell, machine, number, said

HEADER = ("network", "`--network`", "M MACs", "rewritten", "saved %", "BatchNorms")
SPEEDS = (
    ("x plain, 1", 1, OURS),
    ("x plain, 8", 8, OURS),
    ("optimiser, 1", 1, OPTIMISER),
    ("optimiser, 8", 8, OPTIMISER),
    ("in OpenVINO, 1", 1, OPENVINO_OURS),
    ("in OpenVINO, 8", 8, OPENVINO_OURS),
)


def ratio_of(row: Row, batch: int, contestant: str) -> Ratio | None:
    """None if left out."""
    times = (time for each in row["times"] if each["batch"] == batch for time in each["rows"])
    found = next((time["times_as_fast"] for time in times if time["contestant"] == contestant), None)
    return Ratio(**found) if found else None


def saved(row: Row) -> float:
    return 1 - float([*row["macs_after"].values()][-1]) / float(row["macs"])


def measured(result: Result) -> list[Row]:
    return [row for row in result["rows"] if "left_out" not in row]


def table(result: Result, intervals: bool = True) -> Table:
    shown = cell if intervals else lambda ratio: number(ratio.ratio)
    cells = []
    for row in measured(result):
        ratios = [ratio_of(row, batch, contestant) for _, batch, contestant in SPEEDS]
        before, after = row["macs"], row["macs"] * (1 - saved(row))
        norms = f"{row['norms'][0]} to {row['norms'][1]}" if row["norms"][0] else "-"
        work = (f"{before / 1e6:,.1f}", f"{after / 1e6:,.1f}", f"{100 * saved(row):.1f}", norms)
        speeds = (shown(ratio) if ratio else "-" for ratio in ratios)
        cells.append((row["title"], f"`{row['network']}`", *work, *speeds))
    return Table((*HEADER, *(title for title, _, _ in SPEEDS)), tuple(cells), names=2)


def foreign(sources: Sources) -> Section:
    result = sources.first("foreign")
    question = "What do the rewrites bring networks of others?"
    if not result or not measured(result):
        return Section(question, (), ())
    what = (
        f"`vitbn rewrite` on networks of transformers, timm and PyPI wheels, one thread, batch 1 and 8, on "
        f"{machine(result)}. Every contestant in turn; in brackets the 95 % bootstrap interval. The optimiser is ONNX "
        "Runtime's own for transformers, beside the plain file; the last two columns compare both files in OpenVINO."
    )
    left_out = [f"{row['network']}: {row['left_out']}" for row in result["rows"] if "left_out" in row]
    blocks: list[Block] = [Text(what), plots.foreign(result), table(result)]
    blocks += [Text(f"Not measured: {'; '.join(left_out)}.")] if left_out else []
    return Section(question, tuple(_short(result)), tuple(blocks))


def _short(result: Result) -> Iterator[str]:
    ratios = [(ratio, row) for row in measured(result) if (ratio := ratio_of(row, 1, OURS))]
    if ratios:
        (best, most), (worst, least) = (choose(ratios, key=lambda each: each[0].ratio) for choose in (max, min))
        yield (
            f"**Networks of others**, rewritten as ONNX files, at batch 1: {most['title']} {said(best)} as fast as its "
            f"plain file, {least['title']} {said(worst)}."
        )
