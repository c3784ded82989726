"""Types of command-line options that several benchmarks have."""

from __future__ import annotations

from typing import Any, Literal

import click


class NameList(click.ParamType[list[str]]):
    """Comma-separated names out of a fixed set, without repetition; `all` is all of them."""

    name = "names"

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self.allowed = allowed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        names = self.allowed if value == "all" else value.split(",")
        for name in names:
            if name not in self.allowed:
                self.fail(f"expected names out of {','.join(self.allowed)}, found {name!r}", param, ctx)
        return list(dict.fromkeys(names))


class MicroBatch(click.ParamType[int | Literal["auto"]]):
    """`auto`, or a number of images."""

    name = "auto|images"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Literal["auto"]:
        if value == "auto":
            return "auto"
        if not str(value).isdecimal() or int(value) < 1:
            self.fail(f"expected auto or a number of at least 1, found {value!r}", param, ctx)
        return int(value)
