"""The results of a folder, and what several sections need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure.timing import Durations, Ratio, ratio_with_interval
from benchmarks.reporting.page import Block, Heading

Row = dict[str, Any]
Result = dict[str, Any]

COMMANDS = {
    "rewrites": "python benchmarks/rewrites.py --json FILE",
    "foreign": "python benchmarks/foreign.py --json FILE",
    "frontier-measured": "python benchmarks/frontier.py --output DIR",
    "latency": "python benchmarks/latency.py --json FILE",
    "sweep": "python benchmarks/latency.py --sweep --json FILE",
    "operators": "python benchmarks/operators.py --json FILE",
    "engines": "python benchmarks/engines.py --json FILE",
    "accuracy": "python benchmarks/accuracy.py --json FILE",
    "overhead": "python benchmarks/overhead.py --json FILE",
    "throughput": "python benchmarks/throughput.py --json FILE",
    "faults": "python benchmarks/faults.py --json FILE",
    "proxy": "python benchmarks/proxy.py --json FILE",
    "bulk": "python benchmarks/bulk.py --json FILE",
}


class ReportError(Exception):
    """The message names the file."""


@dataclass(frozen=True)
class File:
    """`name`: the path inside the folder."""

    name: str
    content: Result

    @property
    def benchmark(self) -> str:
        return benchmark(self.content) or ""


@dataclass(frozen=True)
class Sources:
    """`interrupted`: names of results of stopped or failed runs; their parts may be missing."""

    files: tuple[File, ...]
    interrupted: tuple[str, ...]

    def all(self, name: str) -> list[Result]:
        return [file.content for file in self.files if file.benchmark == name]

    def first(self, name: str) -> Result | None:
        return next(iter(self.all(name)), None)


@dataclass(frozen=True)
class Section:
    """`short`: the answer in sentences, may be empty; `blocks`: the evidence."""

    question: str
    short: tuple[str, ...]
    blocks: tuple[Block, ...]

    def __iter__(self) -> Iterator[Block]:
        yield Heading(self.question)
        yield from self.blocks


def benchmark(content: object) -> str | None:
    if not isinstance(content, dict):
        return None
    name = content.get("benchmark") or content.get("study")
    return name if isinstance(name, str) and name in COMMANDS else None


def read(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ReportError(f"{path}: expected a JSON file, found {error}") from error


def read_result(path: Path) -> Result | None:
    """None for other JSON. Raises ReportError as `read`, and for a result without its machine."""
    content = read(path)
    if not isinstance(content, dict) or not benchmark(content):
        return None
    if not isinstance(content.get("environment"), dict):
        raise ReportError(f"{path}: expected the environment of a {benchmark(content)} result, found none")
    return content


def find(folder: Path) -> Sources:
    """In `folder` and below; ignores other JSON. Raises ReportError without a result."""
    contents = ((path.relative_to(folder).as_posix(), read_result(path)) for path in sorted(folder.rglob("*.json")))
    files = [File(name, content) for name, content in contents if content]
    interrupted = tuple(file.name for file in files if "interrupted" in file.content)
    whole = tuple(file for file in files if file.name not in interrupted)
    if not whole:
        found = f"only interrupted: {', '.join(interrupted)}" if interrupted else "none"
        raise ReportError(
            f"{folder}: expected JSON files of the benchmarks, found {found}; `make benchmarks` writes them"
        )
    return Sources(whole, interrupted)


def times_faster(row: Row, than: Row) -> Ratio:
    """The samples must come from the same rounds."""
    return ratio_with_interval(Durations(tuple(than["samples_ns"])), Durations(tuple(row["samples_ns"])))


def cell(ratio: Ratio) -> str:
    """A row's ratio to itself is 1."""
    if ratio.low == ratio.high == 1:
        return "1"
    return f"{number(ratio.ratio)} ({number(ratio.low)} to {number(ratio.high)})"


def said(ratio: Ratio) -> str:
    return f"**{number(ratio.ratio)}** times ({number(ratio.low)} to {number(ratio.high)})"


def number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def is_cpu(result: Result) -> bool:
    return bool(result["environment"]["device"] == "cpu")


def machine(result: Result) -> str:
    environment = result["environment"]
    on = "" if is_cpu(result) else f", {environment['device']}"
    return f"{environment['threads']} of {environment['cores']} cores of {environment['cpu']}{on}"
