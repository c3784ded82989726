"""The shipped checkpoints, trained on MNIST: models/pretrained/NAME.safetensors.

In: a name or configuration. Out: the file.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from models.config import ModelConfig

SHIPPED = ("vitbn", "vitbn-late-deep", "vitbn-late-64", "vitbn-coarse", "vitbn-tiny", "vitbnffn", "vit", "cnn")
PRETRAINED = Path(__file__).parent / "pretrained"


class NameChoice(click.Choice[str]):
    """Suggests the nearest name."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        near = get_close_matches(str(value), self.choices, 1)
        return super().get_invalid_choice_message(value, ctx) + (f" Did you mean {near[0]!r}?" if near else "")


def shipped(name: str) -> Path:
    return PRETRAINED / f"{name}.safetensors"


def relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


@cache
def matching(config: ModelConfig) -> Path | None:
    from models.checkpoint import read_config

    return next((path for path in map(shipped, SHIPPED) if read_config(path) == config), None)


@click.command()
def models() -> None:
    """List the shipped checkpoints: architecture, accuracy and cost."""
    from models.checkpoint import load
    from models.macs import macs_per_image

    click.echo(
        f"{'name':15} {'model':9} {'depth':>5} {'test accuracy %':>15} {'M MACs':>7} {'parameters':>10} {'epochs':>6}"
    )
    for name in SHIPPED:
        checkpoint = load(shipped(name))
        config, metrics = checkpoint.config, checkpoint.metrics
        click.echo(
            f"{name:15} {config.model:9} {config.depth if config.is_transformer else '-':>5}"
            f" {100 * metrics['test_accuracy']:15.2f} {macs_per_image(checkpoint.model) / 1e6:7.2f}"
            f" {sum(p.numel() for p in checkpoint.model.parameters()):10,} {metrics['epochs']:6}"
        )
    click.echo("Accuracy on MNIST's 10,000 test images; multiply-accumulates an image as trained, before any rewrite.")


if __name__ == "__main__":
    import vitbn_packages  # noqa: F401  # reports another `models` that hides ours

    models()
