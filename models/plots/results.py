"""The files of a study: NAME.json, and NAME.md and pictures from it alone.

In the JSON `scope` is what was run (`reduced` describes the rest); `runs` have config, options and series.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.files import write_atomically
from models.plots.figures import png

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TIMING = "Times exclude data loading: the images are on the device beforehand."
WITH_TEACHER_CACHE = (
    "Test times exclude data loading; training times include reading, and once making, the teacher's epochs."
)

Result = dict[str, Any]
"""The content of the JSON file."""

Plots = Callable[[Result], Mapping[str, "Figure"]]
"""Name -> figure; the file is called STUDY-NAME.png."""


@dataclass(frozen=True)
class Column:
    name: str
    decimals: int | None = None


def table(title: str, columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> dict[str, Any]:
    """Unrounded numbers, None for an empty cell."""
    return {"title": title, "columns": [asdict(column) for column in columns], "rows": [list(row) for row in rows]}


def percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def markdown(result: Result, plots: Sequence[str]) -> str:
    lines = [f"# {result['study']}", "", result["question"], "", f"    {result['command']}", ""]
    lines += _paragraphs(result)
    for entry in result["tables"]:
        lines += ["", f"**{entry['title']}**", "", *_rows(entry)]
    for name in plots:
        lines += ["", f"![{name}]({name})"]
    return "\n".join(lines) + "\n"


def _paragraphs(result: Result) -> Iterator[str]:
    if result["scope"]["reduced"]:
        yield f"**Not the whole study, {result['scope']['reduced']}.**"
        yield ""
    computed = " and ".join(last_blocks_of(result))
    yield f"{machine(result)}. {result['timing']}{f' Last block, trained and timed: {computed}.' if computed else ''}"
    for note in result["notes"]:
        yield from ("", note)


def last_blocks_of(result: Mapping[str, Any]) -> list[str]:
    """Runs of before there was a choice computed all rows."""
    names = {"all": "all rows", "row": "the CLS row"}
    return sorted({names[run["options"].get("last_block", "all")] for run in result.get("runs", [])})


def machine(result: Result) -> str:
    environment = result["environment"]
    used = f"threads: {environment['threads']}, device: {environment['device']}"
    return f"{environment['cpu']}, cores: {environment['cores']}, {used}, load: {environment['load_1min']:.1f}"


def footnote(result: dict[str, Any]) -> str:
    missing = result["scope"]["reduced"]
    reduced = f"NOT THE WHOLE STUDY: {missing}.\n" if missing else ""
    return f"{reduced}{result['timing']}\n{machine(result)}."


def _rows(entry: dict[str, Any]) -> Iterator[str]:
    columns = entry["columns"]
    yield f"| {' | '.join(column['name'] for column in columns)} |"
    yield f"|{'|'.join('---' if column['decimals'] is None else '---:' for column in columns)}|"
    for row in entry["rows"]:
        cells = (cell(value, column["decimals"]) for value, column in zip(row, columns, strict=True))
        yield f"| {' | '.join(cells)} |"


def cell(value: object, decimals: int | None) -> str:
    if value is None:
        return "-"
    return str(value) if decimals is None else f"{value:,.{decimals}f}"


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def text(result: Result) -> str:
    """JSON with a line for each run."""
    fields = []
    for name, value in result.items():
        items = ",\n  ".join(json.dumps(each) for each in value) if isinstance(value, list) else ""
        fields.append(f"{json.dumps(name)}: " + (f"[\n  {items}]" if items else json.dumps(value)))
    return "{\n " + ",\n ".join(fields) + "\n}\n"


def write(folder: Path, result: Result, page: dict[str, Any], figures: Mapping[str, Figure]) -> list[Path]:
    """`page`: `tables` and `notes`, which the JSON's figures give."""
    name = result["study"]
    pictures = {f"{name}-{plot}.png": png(figure) for plot, figure in figures.items()}
    contents = {
        f"{name}.json": text(result).encode(),
        f"{name}.md": markdown(result | page, list(pictures)).encode(),
        **pictures,
    }
    for file, content in contents.items():
        write_atomically(folder / file, content)
    return [folder / file for file in contents]
