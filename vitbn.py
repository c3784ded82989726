"""The one program: `vitbn COMMAND`, each command the click object of its own script."""

from __future__ import annotations

from importlib import import_module

import click

COMMANDS = {
    "models": "models.catalog",
    "train": "models.train",
    "tune": "models.tune",
    "study": "models.study",
    "export": "export.to_onnx",
    "tensorrt": "export.to_tensorrt",
    "repository": "export.repository",
    "serve": "serving.launcher",
    "infer": "clients.infer",
    "web": "clients.web.app",
    "latency": "benchmarks.latency",
}


class LazyGroup(click.Group):
    """Imports a command when it is asked for, so that a client machine needs no package of the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(cls=LazyGroup)
def main() -> None:
    """Train a Vision Transformer with BatchNorm, rewrite it exactly, serve it on Triton, ask it, time it."""
