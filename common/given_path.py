"""The type of options that are paths."""

from __future__ import annotations

import os
from typing import Any

import click


class GivenPath(click.Path):
    """Refuses an empty path, such as of an unset variable, which pathlib takes for the current folder."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("expected a path, found an empty one", param, ctx)
        return super().convert(value, param, ctx)
