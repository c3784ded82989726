"""Reads the names of classes, in the order of a network's scores.

In: the user's `--labels` file: a class a line; or JSON: a list of names, or the config.json of transformers
(`id2label`) or timm (`label_names`). Out: the names; PublishError for other files.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from common.files import reason
from export.errors import PublishError


def read_labels(file: Path) -> list[str]:
    """The names in the file; empty lines at its end do not count. Raises PublishError."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PublishError(f"{file}: expected a class a line, found {reason(error)}") from error
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    return _from_json(file, content) if isinstance(content, dict | list) else _from_lines(file, text)


def _from_lines(file: Path, text: str) -> list[str]:
    names = [line.strip() for line in text.rstrip().splitlines()]
    if "" in names:
        raise PublishError(f"{file}: expected a class a line, found line {names.index('') + 1} empty")
    _check_order(file, names)
    return names


def _check_order(file: Path, names: list[str]) -> None:
    """Raises PublishError if all lines begin with their number, such as "3: cat", and are in another order."""
    numbers = [int(match[1]) for name in names if (match := re.match(r"(\d{1,6})[\s:;,.]+\S", name))]
    ordered = sorted(numbers)
    if (
        len(numbers) == len(names)
        and ordered != numbers
        and ordered in ([*range(len(names))], [*range(1, len(names) + 1)])
    ):
        line = next(i for i, pair in enumerate(zip(ordered, numbers, strict=True)) if pair[0] != pair[1])
        raise PublishError(
            f"{file}: expected the classes in the order of their numbers, found line {line + 1} {names[line]!r}"
        )


def _from_json(file: Path, content: dict[str, Any] | list[Any]) -> list[str]:
    names = content
    if isinstance(content, dict):
        numbered = content.get("id2label")
        names = content.get("label_names", [])
        if isinstance(numbered, dict) and {*numbered} == {str(number) for number in range(len(numbered))}:
            names = [numbered[str(number)] for number in range(len(numbered))]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise PublishError(
            f"{file}: expected a class a line, a list of names, id2label or label_names, found other JSON"
        )
    return names
