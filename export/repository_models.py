"""Helpers of the commands on a model repository: its models, and their versions as rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitbn_packages import in_words, is_of_output

if TYPE_CHECKING:
    from export.publishing.manifest import Network, Origin


def print_versions(model_dir: Path, loaded: dict[str, list[int]] | None) -> None:
    """Prints a row for each version. `loaded`: model -> versions that servers have ready; None: no server answers."""
    from common.repository import versions
    from export.publishing.promote import served

    configured = served(model_dir)
    ready = configured if loaded is None else loaded.get(model_dir.name, [])
    for number in versions(model_dir):
        state = "default" if number == max(ready, default=0) else "yes" if number in ready else "-"
        click.echo(f"{model_dir.name:16} {number:7} {state:8} {_figures(model_dir / str(number))}")


def models_of(repository: Path) -> list[Path]:
    """The models' folders, by name. Raises ClickException if there is no repository."""
    if not repository.is_dir():
        raise click.ClickException(f"{repository}: expected a model repository, found no such folder")
    return sorted(path for path in repository.iterdir() if path.is_dir())


def model_of(repository: Path, name: str) -> Path:
    """The model's folder. Raises ClickException if the repository does not have the model."""
    models = models_of(repository)
    if name not in {path.name for path in models}:
        names = ", ".join(path.name for path in models) or "none"
        raise click.ClickException(f"{repository}: expected one of its models ({names}), found {name!r}")
    return repository / name


def for_published(models: list[Path], action: Callable[[Path], None]) -> int:
    """Calls `action` for the folders that this project has published; prints its PublishError or OSError.

    Folders of another origin, which Triton may serve, are named and left alone. Returns how many calls failed.
    """
    from export.errors import PublishError
    from export.publishing.publish import is_published

    failures = 0
    for model_dir in models:
        try:
            if is_published(model_dir):
                action(model_dir)
            else:
                reason = "of another origin: no manifest, nothing to compare with"
                click.echo(f"{model_dir.name:16} {'-':>7}  {reason}", err=True)
        except (PublishError, OSError) as error:
            if isinstance(error, BrokenPipeError) or is_of_output(error):
                raise
            click.echo(f"{model_dir.name:16} {'-':>7}  {in_words(error)}", err=True)
            failures += 1
    return failures


def expect_no_problems(repository: Path, problems: int) -> None:
    if problems:
        raise click.ClickException(f"{repository}: expected every model as published, found {problems} that are not")


def _figures(version_dir: Path) -> str:
    """Accuracy, error, size and rewrites of a version as columns; for a damaged version the error."""
    from common.repository import SAMPLE_FILE
    from export.errors import PublishError
    from export.publishing.artifact import read_version

    try:
        manifest = read_version(version_dir).manifest
    except PublishError as error:
        return str(error)
    size_mb = sum((version_dir / place).stat().st_size for place in manifest.files if place != SAMPLE_FILE) / 1e6
    origin = manifest.origin
    if origin.network is None:
        return f"{'-':>10} {'-':>9} {size_mb:6.1f}  foreign ONNX"
    percent = "-" if origin.accuracy is None else f"{100 * origin.accuracy:.2f}"
    rewrites = ", ".join(origin.rewrites) or "-"
    return f"{percent:>10} {_measured_error(origin, origin.network):>9} {size_mb:6.1f}  {rewrites}"


def _measured_error(origin: Origin, network: Network) -> str:
    """The error of the published file: an engine's, or a float32 file's; "-" if it was not measured."""
    if origin.engine:
        return f"{origin.engine.max_abs_error:.1e}"
    return f"{network.max_abs_error:.1e}" if origin.precision == "fp32" else "-"
