"""Command line of the model repository: what is served, publish, promote, roll back, prune, verify.

`python export/repository.py --help`. Changes are made on the files; a server that runs is told of them and must take
them up, or they are undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from export.live import LiveServer

Command = TypeVar("Command", bound=Callable[..., Any])


def _headers(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition(":") for value in values]
    for name, colon, _ in pairs:
        if not (name and colon):
            raise click.BadParameter(f"expected NAME:VALUE, found {name!r}")
    return {name: content.strip() for name, _, content in pairs}


repository_option = click.option(
    "--repository", type=click.Path(path_type=Path), default=Path("triton_repo"), show_default=True
)


def server_options(command: Command) -> Command:
    """Where the server is that is told of a change."""
    header = click.option("--header", multiple=True, metavar="NAME:VALUE", callback=_headers, help="For the server.")
    server = click.option("--server", default="127.0.0.1:8000", show_default=True, help="HOST:PORT of HTTP.")
    return repository_option(server(header(command)))


@click.group()
def repository() -> None:
    """Operate a Triton model repository."""


@repository.command("list")
@server_options
def list_(repository: Path, server: str, header: dict[str, str]) -> None:
    """List the versions of every model, which of them are served, and what they are worth."""
    with _errors():
        from export.live import connect
        from export.promote import served
        from export.publish import versions

        live = connect(server, header)
        loaded = live.served() if live else {}
        click.echo(f"{'model':16} {'version':>7} {'served':8} {'accuracy %':>10} {'max error':>9} {'MB':>6}  rewrites")
        for model_dir in _models(repository):
            answering = loaded.get(model_dir.name, []) if live else served(model_dir)
            for number in versions(model_dir):
                state = "default" if number == max(answering, default=0) else "yes" if number in answering else "-"
                click.echo(f"{model_dir.name:16} {number:7} {state:8} {_worth(model_dir / str(number))}")
        click.echo(f"served: by the server at {server}" if live else "served: as config.pbtxt says; no server is asked")


@repository.command()
@click.argument("model")
@click.argument("version", type=click.IntRange(1), required=False)
@repository_option
def show(model: str, version: int | None, repository: Path) -> None:
    """Print the manifest of a version, by default of the one that is served."""
    with _errors():
        from export.artifact import read_version
        from export.promote import served

        model_dir = _model(repository, model)
        artifact = read_version(model_dir / str(version or max(served(model_dir), default=0)))
        click.echo(artifact.manifest_json().decode())


@repository.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", help="To serve it under.  [default: its model's]")
@click.option("--instances", type=click.IntRange(1, 64), help="Copies of the model.")
@click.option("--threads", type=click.IntRange(0, 256), help="Of each copy on a CPU; 0: one a core.")
@server_options
def publish(
    file: Path,
    name: str | None,
    instances: int | None,
    threads: int | None,
    repository: Path,
    server: str,
    header: dict[str, str],
) -> None:
    """Publish a file of `to_onnx.py --output` or `to_tensorrt.py --output` as the next version of its model."""
    with _operation(repository):
        from export import publish as publishing
        from export.artifact import ONNX_FILE, PLAN_FILE, read_artifact
        from export.promote import activate, served
        from export.triton_config import Serving
        from export.verify import check_answer

        artifact = read_artifact(file, file.with_suffix(".json"))
        if artifact.file_name == ONNX_FILE:
            check_answer(file, artifact)
        model, serving = str(artifact.config.model), Serving(instances=instances, threads=threads)
        if artifact.file_name == PLAN_FILE:
            sizes = artifact.manifest["engine"]["profile"].values()
            serving = Serving("tensorrt", instances, max_batch_size=max(sizes), graph_batches=sorted({*sizes}))
            model = f"{model}_trt"
        model_dir = repository / (name or model)
        before = served(model_dir) if model_dir.is_dir() else []
        version_dir = publishing.publish(repository, model_dir.name, artifact, serving)
        click.echo(f"Wrote {version_dir}")
        activate(model_dir, before, _server_of(model_dir, server, header))


@repository.command()
@click.argument("model")
@click.argument("version", type=click.IntRange(1))
@server_options
def promote(model: str, version: int, repository: Path, server: str, header: dict[str, str]) -> None:
    """Serve VERSION of MODEL, and the one before it, with no newer one."""
    model_dir = _model(repository, model)
    with _operation(repository):
        _promote(model_dir, version, server, header)


@repository.command()
@click.argument("model")
@server_options
def rollback(model: str, repository: Path, server: str, header: dict[str, str]) -> None:
    """Go back to the version of MODEL that was served before."""
    model_dir = _model(repository, model)
    with _operation(repository):
        from export.promote import fall_back

        _promote(model_dir, fall_back(model_dir), server, header)


@repository.command()
@click.argument("model", required=False)
@click.option("--keep", type=click.IntRange(1), default=2, show_default=True, help="The newest versions.")
@server_options
def prune(model: str | None, keep: int, repository: Path, server: str, header: dict[str, str]) -> None:
    """Remove the versions that are neither served nor among the newest, and what killed publishers left."""
    with _errors():
        from export.live import connect
        from export.promote import prune as prune_model
        from export.publish import sweep

        chosen = [_model(repository, model)] if model else _models(repository)
        live = connect(server, header)
        loaded = live.served() if live else {}
        for path in sweep(repository):
            click.echo(f"Removed {path}")
        for model_dir in chosen:
            for number in prune_model(model_dir, keep, loaded.get(model_dir.name, [])):
                click.echo(f"Removed {model_dir / str(number)}")


@repository.command()
@click.argument("model", required=False)
@repository_option
def verify(model: str | None, repository: Path) -> None:
    """Check every version against its manifest: hashes, config, graph, a sample answered as at its export."""
    from export.artifact import PublishError
    from export.verify import verify_model

    wrong = 0
    with _errors():
        for model_dir in [_model(repository, model)] if model else _models(repository):
            try:
                for found in verify_model(model_dir):
                    what = found.problem or found.left_out or "ok"
                    click.echo(f"{model_dir.name:16} {found.version:>7}  {what}", err=bool(found.problem))
                    wrong += bool(found.problem)
            except PublishError as error:
                click.echo(f"{model_dir.name:16} {'-':>7}  {error}", err=True)
                wrong += 1
    if wrong:
        raise click.ClickException(f"{repository}: expected every version as it was published, found {wrong} wrong")


def _promote(model_dir: Path, version: int, server: str, header: dict[str, str]) -> None:
    from export import promote
    from export.artifact import PublishError
    from export.verify import verify_version

    if (model_dir / str(version)).is_dir() and (problem := verify_version(model_dir, version).problem):
        raise PublishError(problem)
    promote.promote(model_dir, version, _server_of(model_dir, server, header))
    click.echo(f"{model_dir.name}: version {version} is the default")


def _server_of(model_dir: Path, address: str, headers: dict[str, str]) -> LiveServer | None:
    """The running server if it has that model in its repository; says what becomes of the change without it."""
    from export.live import connect

    server = connect(address, headers)
    if server and model_dir.name in server.served():
        return server
    why = f"the server at {address} has no model {model_dir.name}" if server else f"no server at {address}"
    click.echo(f"{why}: the next one that starts on {model_dir.parent} serves it so")
    return None


def _models(repository: Path) -> list[Path]:
    if not repository.is_dir():
        raise click.ClickException(f"{repository}: expected a model repository, found no such folder")
    return sorted(path for path in repository.iterdir() if path.is_dir())


def _model(repository: Path, name: str) -> Path:
    found = _models(repository)
    if name not in {path.name for path in found}:
        names = ", ".join(path.name for path in found) or "none"
        raise click.ClickException(f"{repository}: expected one of its models ({names}), found {name!r}")
    return repository / name


def _worth(version_dir: Path) -> str:
    """The columns of `list` that the manifest fills."""
    from export.artifact import PublishError, read_version

    try:
        artifact = read_version(version_dir)
    except PublishError as error:
        return str(error)
    manifest = artifact.manifest
    accuracy = manifest.get("test_accuracy", manifest["metrics"].get("test_accuracy"))
    percent = "-" if accuracy is None else f"{100 * accuracy:.2f}"
    rewrites = ", ".join(manifest["rewrites"]) or "-"
    return f"{percent:>10} {manifest['max_abs_error']:9.1e} {len(artifact.data) / 1e6:6.1f}  {rewrites}"


@contextmanager
def _operation(repository: Path) -> Iterator[None]:
    """One operator at a time, from the files until the server has taken them up or they are undone."""
    with _errors():
        from export.publish import locked

        with locked(repository, ".operating"):
            yield


@contextmanager
def _errors() -> Iterator[None]:
    from export.errors import ExportError

    try:
        yield
    except (ExportError, OSError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    repository()
