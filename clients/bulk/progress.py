"""Prints a run's progress to standard error: a line every ten seconds, in a terminal a single line that is updated."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

import click

from clients.bulk.scoring import Outcome
from common.plurals import counted

_EVERY_S, _TERMINAL_EVERY_S = 10.0, 0.5


@dataclass
class Progress:
    """Counts outcomes. `parts` and `rows` (None: unknown) are the totals of the run."""

    parts: int
    rows: int | None
    done: int = 0
    rows_done: int = 0
    errors: int = 0
    failed: int = 0
    _started_s: float = field(default_factory=time.monotonic)
    _printed_s: float = 0.0  # time.monotonic() of the last line

    def add(self, outcome: Outcome) -> None:
        """Prints a failure, and from time to time the progress."""
        if outcome.failure:
            self.failed += 1
            self._clear()
            click.echo(f"Error: part {outcome.number}: {outcome.failure}", err=True)
        self.done += 1
        self.rows_done += outcome.rows
        self.errors += outcome.errors
        terminal, now_s = sys.stderr.isatty(), time.monotonic()
        if now_s - max(self._printed_s, self._started_s) >= (_TERMINAL_EVERY_S if terminal else _EVERY_S):
            self._printed_s = now_s
            click.echo(f"\r\033[K{self.line()}" if terminal else self.line(), err=True, nl=not terminal)

    def on_retry(self, outcome: Outcome) -> None:
        self._clear()
        click.echo(f"Note: part {outcome.number} is tried again: {outcome.failure}", err=True)

    def line(self) -> str:
        seconds = max(time.monotonic() - self._started_s, 1e-9)
        share = self.rows_done / self.rows if self.rows else self.done / max(1, self.parts)
        unfinished = self.done < self.parts and share > 0
        duration = f"{_clock(seconds * (1 - share) / share)} left" if unfinished else f"{_clock(seconds)} taken"
        done = counted(self.rows_done, "row", ",")
        rows = done if self.rows is None else f"{self.rows_done:,} of {counted(self.rows, 'row', ',')}"
        parts = f"{self.done:,} of {counted(self.parts, 'part', ',')}"
        errors = f", {self.errors:,} with errors" if self.errors else ""
        rate = f"{self.rows_done / seconds:,.0f} rows/s"
        return f"{rows}{errors}, {parts}, {rate}, {duration}"

    def end(self) -> None:
        self._clear()
        click.echo(self.line(), err=True)

    def _clear(self) -> None:
        if sys.stderr.isatty():
            click.echo("\r\033[K", err=True, nl=False)


def _clock(seconds: float) -> str:
    """The duration as H:MM:SS."""
    minutes, full_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{full_seconds:02}"
