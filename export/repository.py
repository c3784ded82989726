"""Command line: operates a model repository and makes running servers load the change; undoes what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from export.pictures.options import PictureOptions, picture_options, read_pictures
from export.repository_models import expect_no_problems, for_published, model_of, models_of, print_versions
from export.repository_server_options import loading_options, repository_option, server_options
from vitbn_packages import one_line_errors

if TYPE_CHECKING:
    from export.publishing.artifact import Artifact
    from export.publishing.promote import Servers


@click.group()
def repository() -> None:
    """Operate a Triton model repository."""


@repository.command("list")
@server_options
@one_line_errors()
def list_(repository: Path, servers: tuple[str, ...], header: dict[str, str], key: str | None) -> None:
    """List the versions of every model, served or not, with accuracy, error and size."""
    from export.publishing.promote import connect
    from serving.model_control_client import Refused

    models = models_of(repository)
    try:
        live, note = connect(servers, header, key=key), ""
    except Refused as refusal:
        live, note = None, f"; {refusal}"
    loaded = live.served() if live else None
    click.echo(f"{'model':16} {'version':>7} {'served':8} {'accuracy %':>10} {'max error':>9} {'MB':>6}  rewrites")
    problems = for_published(models, lambda model_dir: print_versions(model_dir, loaded))
    if not note and (missing := _absent(live, servers)):
        note = f"; no server answers at {', '.join(missing)}"
    click.echo(f"served: by {_named(live.addresses) if live else 'config.pbtxt'}{note}")
    expect_no_problems(repository, problems)


@repository.command()
@click.argument("model")
@click.argument("version", type=click.IntRange(1), required=False)
@repository_option
@one_line_errors()
def show(model: str, version: int | None, repository: Path) -> None:
    """Print the manifest of a version, by default the served version."""
    from export.publishing.artifact import read_version
    from export.publishing.promote import served

    model_dir = model_of(repository, model)
    folder = model_dir / str(version or max(served(model_dir), default=0))
    click.echo(read_version(folder).manifest.to_json().decode())


@repository.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", help="Model name.  [default: the network's, else FILE's]")
@click.option("--instances", type=click.IntRange(1, 64), help="Copies of the model.")
@click.option("--threads", type=click.IntRange(0, 256), help="Per copy on a CPU; 0: one per core.")
@click.option(
    "--for",
    "goal",
    type=click.Choice(["latency", "throughput"]),
    help="latency: single rows get a session of their own.  [default: latency for networks of this project]",
)
@click.option(
    "--inputs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Of a file without a manifest: its sample's inputs, .npz.",
)
@picture_options
@loading_options
@one_line_errors()
def publish(
    file: Path,
    name: str | None,
    instances: int | None,
    threads: int | None,
    goal: Any,
    inputs: Path | None,
    pictures: PictureOptions | None,
    repository: Path,
    **server: Any,
) -> None:
    """Publish an ONNX file, or a file of `vitbn rewrite`, `vitbn export --output` or `vitbn tensorrt --output`.

    With --pictures any classifier of pictures, which `vitbn infer photo.jpg --model NAME` then asks: it gets bytes
    instead of floats, and its processor's numbers fold into its first layer.
    """
    from common.repository import ONNX_FILE
    from export.publishing import publish as publishing
    from export.publishing.batching_proof import prove_joining
    from export.publishing.build_config_pbtxt import Serving
    from export.publishing.promote import activate, served

    import_module("tritonclient")  # config.pbtxt needs it: a missing package is named before minutes of proofs
    if inputs and (pictures or file.with_suffix(".json").exists()):
        raise click.UsageError("--inputs: expected a file without a manifest, and no --pictures")
    if name is not None:
        publishing.check_name(name)
    with publishing.locked(repository, OPERATING):
        artifact, default_name, max_batch = read_pictures(file, pictures) if pictures else (*_read(file, inputs), None)
        artifact, joining_lines = prove_joining(artifact)
        name = name or default_name
        engine: Any = None if artifact.manifest.file == ONNX_FILE else "tensorrt"
        serving = Serving(engine, instances, threads, max_batch=max_batch, goal=goal)
        write = partial(publishing.publish, repository, name, artifact, serving, click.echo)
        model_dir = repository / name
        before = served(model_dir) if model_dir.is_dir() else []
        live = _connect(**server)  # refuses a wrong key before anything is written
        click.echo(f"Wrote {write()}")
        for line in joining_lines:
            click.echo(line)
        with _unreachable_reported(model_dir):
            activate(model_dir, before, _with_model(live, model_dir, server["servers"]))


@repository.command()
@click.argument("model")
@click.argument("version", type=click.IntRange(1))
@loading_options
def promote(model: str, version: int, repository: Path, **server: Any) -> None:
    """Serve VERSION of MODEL and the version before it, but no newer version."""
    _promote(repository, model, lambda model_dir: version, server)


@repository.command()
@click.argument("model")
@loading_options
def rollback(model: str, repository: Path, **server: Any) -> None:
    """Go back to the version of MODEL that was served before."""
    from export.publishing.promote import fall_back

    _promote(repository, model, fall_back, server)


@repository.command()
@click.argument("model", required=False)
@click.option("--keep", type=click.IntRange(1), default=2, show_default=True, help="Number of newest versions.")
@server_options
@one_line_errors()
def prune(
    model: str | None,
    keep: int,
    repository: Path,
    servers: tuple[str, ...],
    header: dict[str, str],
    key: str | None,
) -> None:
    """Remove versions that are neither served nor among the newest, and leftovers of killed publishers."""
    from export.publishing.promote import connect
    from export.publishing.promote import prune as prune_model
    from export.publishing.publish import locked, sweep

    def prune_one(model_dir: Path) -> None:
        for number in prune_model(model_dir, keep, loaded.get(model_dir.name, [])):
            click.echo(f"Removed {model_dir / str(number)}")

    chosen = models_of(repository) if model is None else [model_of(repository, model)]
    with locked(repository, OPERATING):
        live = connect(servers, header, key=key)
        loaded = live.served() if live else {}
        for path in sweep(repository):
            click.echo(f"Removed {path}")
        problems = for_published(chosen, prune_one)
    expect_no_problems(repository, problems)


@repository.command()
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@repository_option
@one_line_errors()
def verify(models: tuple[str, ...], repository: Path) -> None:
    """Check every version against its manifest: hashes, config, graph, a sample answered as at its export."""
    from common.repository import Damaged, check_links
    from export.publishing.verify import verify_model

    problems: list[str] = []

    def verify_one(model_dir: Path) -> None:
        for verified in verify_model(model_dir):
            result = verified.problem or verified.left_out or "ok"
            click.echo(f"{model_dir.name:16} {verified.folder:>7}  {result}", err=bool(verified.problem))
            problems.extend([verified.problem] if verified.problem else [])

    chosen = [model_of(repository, name) for name in models] or models_of(repository)
    failures = for_published(chosen, verify_one)
    try:
        check_links(repository)
    except Damaged as damage:
        click.echo(str(damage), err=True)
        problems.append(str(damage))
    if failures or problems:
        count = failures + len(problems)
        raise click.ClickException(f"{repository}: expected every version as published, found {count} wrong")


OPERATING = ".operating"  # lock, held until the server has loaded or refused the change


def _read(file: Path, inputs: Path | None) -> tuple[Artifact, str]:
    """The artifact of a file, and the model's default name: that of the network, or of a foreign network's file."""
    from common.repository import ONNX_FILE
    from export.errors import PublishError
    from export.publishing.sidecar import read_with_sidecars
    from models.networks.config import ModelConfig

    if not (manifest := file.with_suffix(".json")).exists():
        from export.publishing.foreign_artifact import foreign_artifact

        if file.suffix != ".onnx":
            raise PublishError(f"{file}: expected an ONNX file, or an engine with {manifest.name} beside it")
        return foreign_artifact(file, inputs), file.stem
    artifact = read_with_sidecars(file)
    config = artifact.manifest.config
    if not isinstance(config, ModelConfig):
        return artifact, file.stem
    return artifact, config.model if artifact.manifest.file == ONNX_FILE else f"{config.model}_trt"


@one_line_errors()
def _promote(repository: Path, model: str, choose: Callable[[Path], int], server: dict[str, Any]) -> None:
    """Serves the version that `choose` picks in the model's folder. `server`: the options of `loading_options`."""
    from export.errors import PublishError
    from export.publishing import promote
    from export.publishing.publish import locked
    from export.publishing.verify import verify_version

    model_dir = model_of(repository, model)
    with locked(repository, OPERATING):
        version = choose(model_dir)
        if (model_dir / str(version)).is_dir() and (problem := verify_version(model_dir, version).problem):
            raise PublishError(problem)
        promote.versions_with(model_dir, version)  # a wrong version is reported before an absent server
        live = _connect(**server)
        before = promote.promote(model_dir, version, None)
        with _unreachable_reported(model_dir):
            promote.activate(model_dir, before, _with_model(live, model_dir, server["servers"]))
        click.echo(f"{model_dir.name}: version {version} is the default")


def _connect(servers: Sequence[str], header: dict[str, str], key: str | None, grpc: Sequence[str]) -> Servers | None:
    from export.publishing.promote import connect

    if grpc and len(grpc) != len(servers):
        raise click.UsageError(f"--grpc: expected one for each of {len(servers)} servers, found {len(grpc)}")
    return connect(servers, header, grpc, key)


def _with_model(live: Servers | None, model_dir: Path, servers: Sequence[str]) -> Servers | None:
    """`live` if its servers have the model, else None; prints a line if a server serves the change later."""
    if absent := _absent(live, servers):
        _print_not_served(f"no server at {', '.join(absent)}", model_dir)
    if live and model_dir.name not in live.served():
        _print_not_served(f"{_named(live.addresses)} has no model {model_dir.name}", model_dir)
        return None
    return live


def _absent(live: Servers | None, servers: Sequence[str]) -> list[str]:
    """The addresses at which no server answers."""
    return [server for server in servers if not live or server not in live.addresses]


def _named(servers: Sequence[str]) -> str:
    return f"the server at {servers[0]}" if len(servers) == 1 else f"the servers at {', '.join(servers)}"


@contextmanager
def _unreachable_reported(model_dir: Path) -> Iterator[None]:
    """Prints a line, in place of an error, if a server cannot be reached, or does not serve this change."""
    from serving.model_control_client import NotExplicit, OtherConfig, Unreachable

    try:
        yield
    except (NotExplicit, OtherConfig, Unreachable) as reason:
        _print_not_served(str(reason), model_dir)


def _print_not_served(why: str, model_dir: Path) -> None:
    click.echo(f"Not served yet: {why}. The next server that starts on {model_dir.parent} serves this change.")


if __name__ == "__main__":
    repository()
