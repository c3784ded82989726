"""The type of options that are addresses of servers."""

from __future__ import annotations

import click

from common.addresses import is_address


class Address(click.ParamType[str]):
    """HOST:PORT."""

    name = "host:port"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not is_address(value):
            self.fail(f"expected HOST:PORT, found {value!r}", param, ctx)
        return value
