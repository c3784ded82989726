"""`vitbn bulk`: pictures in, Parquet out, without a server.

Exit codes: 0 every part has its file; 1 a part failed, or an input is invalid; 2 usage; 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitbn_packages import in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clients.bulk.job_manifest import Job, Output, Part

INTERRUPTED = 130


def _parse_share(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int]:
    """The index and the count of --share. Raises click.BadParameter."""
    index, slash, count = value.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise click.BadParameter(f"expected INDEX/COUNT with INDEX below COUNT, found {value!r}")
    return int(index), int(count)


@click.command()
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option("--output", required=True, metavar="DIR", help="Folder or URL of the answers; made if absent.")
@click.option(
    "--model",
    type=click.Path(exists=True, path_type=Path),
    default="triton_repo/vitbn",
    show_default=True,
    help="A published model, one version of it, or an ONNX file of the exporter.",
)
@click.option("--processes", type=click.IntRange(1), help="Processes of one thread.  [default: one per core]")
@click.option("--engine", type=click.Choice(["processes", "ray"]), default="processes", show_default=True)
@click.option(
    "--share",
    default="0/1",
    show_default=True,
    metavar="I/N",
    callback=_parse_share,
    help="Do the I-th of N shares, from 0: one per machine.",
)
@click.option("--image-column", default="image", show_default=True, help="Parquet column of picture files or pixels.")
@click.option("--id-column", default="id", show_default=True, help="Parquet column of ids; if missing, file and row.")
@click.option(
    "--part-rows", type=click.IntRange(1), help="Rows of a part.  [default: 100000; 2000 picture files; a whole tar]"
)
def bulk(
    inputs: tuple[str, ...],
    output: str,
    model: Path,
    processes: int | None,
    engine: str,
    share: tuple[int, int],
    image_column: str,
    id_column: str,
    part_rows: int | None,
) -> None:
    """Classify what INPUT... holds and write id, label, probability and model version as Parquet.

    An INPUT is a folder, a quoted pattern, a picture, a tar shard (as of webdataset), a Parquet file with pictures or
    pixels, or an idx file; a path or a URL of fsspec (s3://, gs://). A picture that cannot be read becomes a row with
    an error. After a kill the same command continues and gives the same files.
    """
    from clients.bulk import fork_server
    from clients.errors import ClientError

    if output.startswith("memory:"):
        raise click.BadParameter(
            f"expected a folder or storage that processes share, found {output}", param_hint="output"
        )
    if engine == "ray" and processes:
        raise click.UsageError("expected --processes with --engine processes, found ray, which takes every core")
    # SIGTERM, which ends jobs of a cluster, is Ctrl-C: else workers go on, and a container's first process ignores it.
    # So is SIGHUP of a closed terminal, unless nohup ignores it.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        if engine == "processes":
            fork_server.start()
        job, target = _prepare_job(inputs, output, model, image_column, id_column, part_rows)
        code = _run(job, target, engine, share, processes or len(os.sched_getaffinity(0)))
    except ModuleNotFoundError:
        raise  # vitbn_packages names its extra
    except (ClientError, OSError, ImportError, ValueError) as error:
        raise click.ClickException(in_words(error)) from error
    except KeyboardInterrupt:
        click.echo("Interrupted: the same command goes on", err=True)
        code = INTERRUPTED
    gc.freeze()  # else the garbage collection at Python's end takes 0.1 s
    sys.exit(code)


def _prepare_job(
    inputs: tuple[str, ...], output: str, model: Path, image_column: str, id_column: str, part_rows: int | None
) -> tuple[Job, Output]:
    """Plans the job, or continues the job in the output folder. Raises ClientError and OSError."""
    from clients.bulk.job_manifest import Output, Settings, absolute, open_job
    from clients.bulk.network import Network, find_model
    from clients.bulk.planning import Planner

    file = find_model(model)
    network = Network(file)
    sources = tuple(map(absolute, inputs))
    settings = Settings(sources, file.path, file.name, file.version, file.sha256, image_column, id_column, part_rows)
    target = Output(output)
    planner = Planner(network.description.image_shape, settings)
    parts = planner.plan(lambda line: click.echo(f"Note: {line}", err=True))
    return open_job(target, settings, parts), target


def _run(job: Job, output: Output, engine: str, share: tuple[int, int], processes: int) -> int:
    """Does the missing parts of the share and prints the progress. Returns the exit code."""
    from clients.bulk import by_processes, by_ray
    from clients.bulk.job_manifest import parts_to_do
    from clients.bulk.progress import Progress

    part_count, row_count, is_known = 0, 0, True
    for part in parts_to_do(output, job, share):
        part_count += 1
        row_count += part.rows or 0
        is_known &= part.rows is not None
    if not part_count:
        click.echo(f"{output.path}: all parts of this command are there", err=True)
        return 0
    progress = Progress(part_count, row_count if is_known else None)
    parts: Iterator[Part] = parts_to_do(output, job, share)
    if engine == "ray":
        outcomes = by_ray.run(job, parts)
    else:
        outcomes = by_processes.run(job, parts, min(processes, part_count), progress.on_retry)
    for outcome in outcomes:
        progress.add(outcome)
    progress.end()
    return 1 if progress.failed else 0


if __name__ == "__main__":
    bulk()
