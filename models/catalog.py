"""The shipped checkpoints, trained on MNIST and Fashion-MNIST: models/pretrained/NAME.safetensors.

In: a name or configuration. Out: the file.
"""

from __future__ import annotations

import json
import math
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from models.checkpoints.metrics import Metrics
    from models.networks.config import ModelConfig

OF_DIGITS = ("vitbn", "vitbn-late-deep", "vitbn-late-64", "vitbn-coarse", "vitbn-tiny", "vitbnffn", "vit", "cnn")
OF_GARMENTS = ("garments", "garments-cnn")
SHIPPED = (*OF_DIGITS, *OF_GARMENTS)
PRETRAINED = Path(__file__).parent / "pretrained"
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # of a BatchNorm


class NameChoice(click.Choice[str]):
    """Suggests the nearest name."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        near = get_close_matches(str(value), self.choices, 1)
        return super().get_invalid_choice_message(value, ctx) + (f" Did you mean {near[0]!r}?" if near else "")


def shipped(name: str) -> Path:
    return PRETRAINED / f"{name}.safetensors"


def relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


class Description(NamedTuple):
    config: ModelConfig
    metrics: Metrics
    parameters: int


def describe(name: str) -> Description:
    """Reads a shipped checkpoint's safetensors header alone, which needs no torch."""
    from models.checkpoints import metrics as metrics_json
    from models.networks.config import ModelConfig

    with shipped(name).open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    about = header.pop("__metadata__")
    shapes = [tensor["shape"] for key, tensor in header.items() if not key.endswith(BUFFERS)]
    config, metrics = ModelConfig.from_json(about["config"]), metrics_json.from_json(about["metrics"])
    return Description(config, metrics, sum(map(math.prod, shapes)))


@cache
def matching(config: ModelConfig) -> Path | None:
    """The shipped checkpoint with this configuration."""
    return next((shipped(name) for name in SHIPPED if describe(name).config == config), None)


@click.command()
def models() -> None:
    """List the shipped checkpoints: architecture, accuracy and cost."""
    from models.networks.costs import network_macs

    click.echo(
        f"{'name':15} {'model':9} {'dataset':13} {'depth':>5} {'test accuracy %':>15} {'M MACs':>7} {'parameters':>10}"
        f" {'epochs':>6}"
    )
    for name in SHIPPED:
        config, metrics, parameters = describe(name)
        click.echo(
            f"{name:15} {config.model:9} {metrics['dataset']:13} {config.depth if config.is_transformer else '-':>5}"
            f" {100 * metrics['test_accuracy']:15.2f} {network_macs(config) / 1e6:7.2f}"
            f" {parameters:10,} {metrics['epochs']:6}"
        )
    click.echo(
        "Accuracy on the dataset's 10,000 test images; multiply-accumulates an image as trained, before any rewrite."
    )


if __name__ == "__main__":
    import vitbn_packages  # noqa: F401  # reports another `models` that hides ours

    models()
