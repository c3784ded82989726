"""Tables as text, Markdown for a page or aligned columns for a terminal; and what fills their cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.measure.interleaved_timing import Durations, ratio_with_interval
from benchmarks.measure.result_file import Row, Run
from export.intervals import Ratio

Cells = Mapping[str, str]
"""Column -> text."""


@dataclass(frozen=True)
class Table:
    """The first `names` columns hold names and stand left, the others hold numbers. A missing or empty cell shows -."""

    rows: Sequence[Cells]
    names: int = 1

    @property
    def markdown(self) -> str:
        return self._text("pipe")

    @property
    def plain(self) -> str:
        import tabulate

        default, tabulate.MIN_PADDING = tabulate.MIN_PADDING, 0  # the default of 2 makes the widest table too wide
        try:
            return self._text("simple")
        finally:
            tabulate.MIN_PADDING = default

    def _text(self, form: str) -> str:
        import tabulate

        header = list(dict.fromkeys(name for row in self.rows for name in row))
        cells = [[row.get(name) or "-" for name in header] for row in self.rows]
        sides = ["left" if i < self.names else "right" for i in range(len(header))]
        text: str = tabulate.tabulate(cells, header, form, colalign=sides or None, disable_numparse=True)
        return text


def measured_rows(run: Run) -> list[Row]:
    """The rows with figures: other rows name what was not measured, and the reason."""
    return [row for row in run.rows if "reason" not in row]


def find_row(rows: Sequence[Row], **fields: object) -> Row:
    """The first row that has all these fields. Raises StopIteration if no row has them."""
    return next(row for row in rows if fields.items() <= row.items())


def group_rows(rows: Iterable[Row], *fields: str) -> dict[tuple[Any, ...], list[Row]]:
    """Values of the fields -> the rows with these values, in the order of the first of them."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[field] for field in fields), []).append(row)
    return groups


def times_faster(row: Row, than: Row) -> Ratio:
    """How many times as fast `row` is as `than`. Their samples must come from the same rounds."""
    return ratio_with_interval(Durations(tuple(than["samples_ns"])), Durations(tuple(row["samples_ns"])))


def number(value: float) -> str:
    """With about three digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def ratio_text(ratio: Ratio) -> str:
    """The ratio with its interval; 1 for a row that is compared with itself."""
    if ratio.low == ratio.high == 1:
        return "1"
    return f"{number(ratio.ratio)} ({number(ratio.low)} to {number(ratio.high)})"


def milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def percent(share: float, decimals: int = 2) -> str:
    """The share, which is in [0, 1], in %."""
    return f"{100 * share:.{decimals}f}"
