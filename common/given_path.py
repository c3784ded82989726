"""The type of options that are paths."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import click


class GivenPath(click.Path):
    """Refuses an empty path, such as of an unset variable, which pathlib takes for the current folder, and a link in a
    circle, at which `Path.resolve` raises RuntimeError.
    """

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("expected a path, found an empty one", param, ctx)
        try:
            Path(value).stat()
        except OSError as error:
            if error.errno == errno.ELOOP:
                self.fail(f"{value}: {error.strerror}", param, ctx)
        return super().convert(value, param, ctx)
