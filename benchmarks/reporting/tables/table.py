"""A table's rows as text: Markdown for a page, aligned columns for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.measure.run import Row, Run
from benchmarks.measure.timing import Durations, ratio_with_interval
from export.intervals import Ratio

Cells = Mapping[str, str]
"""Column -> text."""


@dataclass(frozen=True)
class Table:
    """The first `names` columns are names, the others numbers. A cell that a row lacks shows as -."""

    rows: Sequence[Cells]
    names: int = 1

    @property
    def markdown(self) -> str:
        return self._text("pipe")

    @property
    def plain(self) -> str:
        import tabulate

        usual, tabulate.MIN_PADDING = tabulate.MIN_PADDING, 0  # 2, the default, makes the widest table too wide
        try:
            return self._text("simple")
        finally:
            tabulate.MIN_PADDING = usual

    def _text(self, form: str) -> str:
        import tabulate

        header = list(dict.fromkeys(name for row in self.rows for name in row))
        cells = [[row.get(name) or "-" for name in header] for row in self.rows]
        sides = ["left" if i < self.names else "right" for i in range(len(header))]
        text: str = tabulate.tabulate(cells, header, form, colalign=sides or None, disable_numparse=True)
        return text


def measured(run: Run) -> list[Row]:
    return [row for row in run.rows if "reason" not in row]


def find(rows: Sequence[Row], **wanted: object) -> Row:
    """The first row that has all `wanted` values."""
    return next(row for row in rows if wanted.items() <= row.items())


def times_faster(row: Row, than: Row) -> Ratio:
    """How many times as fast `row` is as `than`. Their samples must come from the same rounds."""
    return ratio_with_interval(Durations(tuple(than["samples_ns"])), Durations(tuple(row["samples_ns"])))


def number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def cell(ratio: Ratio) -> str:
    if ratio.low == ratio.high == 1:
        return "1"
    return f"{number(ratio.ratio)} ({number(ratio.low)} to {number(ratio.high)})"


def milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def percent(share: float, decimals: int = 2) -> str:
    return f"{100 * share:.{decimals}f}"
