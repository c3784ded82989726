"""Writes docs/cli.md: the help of every command of `vitbn`, as click prints it.

python docs/write_cli.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from vitbn import GROUPS, main

WIDTH = 120


def page() -> str:
    """The text of docs/cli.md."""
    context = click.Context(main, info_name="vitbn")
    parts = [
        "# Every command\n",
        "`python docs/write_cli.py` writes this page; `make check` compares it. Tasks: [usage](usage.md).\n",
    ]
    for group, commands in GROUPS.items():
        parts.append(f"## {group}\n")
        for name in commands:
            command = main.get_command(context, name)
            assert command is not None
            parts += sections(command, click.Context(command, parent=context, info_name=name, max_content_width=WIDTH))
    return "\n".join(parts)


def sections(command: click.Command, context: click.Context) -> Iterator[str]:
    """The section of a command, then those of its subcommands."""
    context.terminal_width = WIDTH
    help_text = re.sub(r"[ \t]+$", "", command.get_help(context), flags=re.MULTILINE)
    yield f"### {context.command_path}\n\n```text\n{help_text}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None
            inner = click.Context(subcommand, parent=context, info_name=name, max_content_width=WIDTH)
            yield from sections(subcommand, inner)


if __name__ == "__main__":
    Path(__file__).with_name("cli.md").write_text(page())
