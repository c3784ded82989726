"""Writes the files of a study: NAME.json, and from its content alone the page NAME.md and pictures.

In the JSON `scope` says what was run, and its `reduced` how much of the full study that is. Each of `runs` has a
config, options, and a series of epochs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.reporting.plotting import png
from benchmarks.reporting.tables.table import Table
from common.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIMING = "Times exclude data loading: the images are on the device beforehand. On a CPU the attention is absorbed."
WITH_TEACHER_CACHE = (
    "Test times exclude data loading; training times include reading, and once making, the teacher's epochs."
)

Result = dict[str, Any]
"""The content of the JSON file."""


class StudyError(Exception):
    """The message names the study or file, what was expected and what was found."""


def result(
    study: str,
    question: str,
    command: str,
    scope: Mapping[str, Any],
    timing: str,
    device: str,
    runs: Sequence[Mapping[str, Any]],
) -> Result:
    """The content of the JSON file. `timing`: what the measured times include, as a text."""
    import torch

    from models.training.machine_description import commit, describe

    return {
        "study": study,
        "question": question,
        "command": command,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "scope": scope,
        "timing": timing,
        "environment": describe(torch.get_num_threads(), device) | {"commit": commit()},
        "runs": list(runs),
    }


def write(
    folder: Path,
    result: Result,
    tables: Mapping[str, Table],
    figures: Mapping[str, Figure],
    notes: Sequence[str] = (),
) -> list[Path]:
    """Writes all files and returns their paths. `tables`: title -> table; `figures`: NAME of STUDY-NAME.png -> figure.

    `notes`: paragraphs of the page. Nothing is written if a figure cannot be drawn.
    """
    name = result["study"]
    pictures = {f"{name}-{plot}.png": png(figure) for plot, figure in figures.items()}
    contents = {
        f"{name}.json": _json(result).encode(),
        f"{name}.md": "".join(f"{line}\n" for line in _page(result, tables, notes, list(pictures))).encode(),
        **pictures,
    }
    for file, content in contents.items():
        write_atomically(folder / file, content)
    return [folder / file for file in contents]


def _json(result: Result) -> str:
    """The result as JSON with a line for each run."""
    fields = []
    for name, value in result.items():
        items = ",\n  ".join(map(json.dumps, value)) if isinstance(value, list) else ""
        fields.append(f"{json.dumps(name)}: " + (f"[\n  {items}]" if items else json.dumps(value)))
    return "{\n " + ",\n ".join(fields) + "\n}\n"


def _page(result: Result, tables: Mapping[str, Table], notes: Sequence[str], pictures: Sequence[str]) -> Iterator[str]:
    yield from (f"# {result['study']}", "", result["question"], "", f"    {result['command']}", "")
    if result["scope"]["reduced"]:
        yield from (f"**Not the whole study, {result['scope']['reduced']}.**", "")
    last_blocks = " and ".join(_last_blocks(result))
    last_block = f" Last block, trained and timed: {last_blocks}." if last_blocks else ""
    yield f"{_machine(result)}. {result['timing']}{last_block}"
    for note in notes:
        yield from ("", note)
    for title, table in tables.items():
        yield from ("", f"**{title}**", "", table.markdown)
    for picture in pictures:
        yield from ("", f"![{picture}]({picture})")


def _last_blocks(result: Result) -> list[str]:
    """Which rows of the last block the runs computed. Results from before the option --last-block computed all rows."""
    names = {"all": "all rows", "row": "the CLS row"}
    return sorted({names[run["options"].get("last_block", "all")] for run in result["runs"]})


def _machine(result: Result) -> str:
    environment = result["environment"]
    used = f"threads: {environment['threads']}, device: {environment['device']}"
    return f"{environment['cpu']}, cores: {environment['cores']}, {used}, load: {environment['load_1min']:.1f}"


def footnote(result: Result) -> str:
    """The footnote of the study's pictures."""
    reduced = result["scope"]["reduced"]
    warning = f"NOT THE WHOLE STUDY: {reduced}.\n" if reduced else ""
    return f"{warning}{result['timing']}\n{_machine(result)}."
