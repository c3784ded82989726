"""Command line: rewrites any ONNX file into a cheaper file that is proved to answer alike."""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from common.given_path import GivenPath
from common.printable import printable
from export.compiler.passes import PASSES
from vitbn_packages import in_words

if TYPE_CHECKING:
    from export.rewrite_file import Written

PROGRESS_SECONDS = 5


def _passes(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """Names of passes, separated by commas."""
    names = tuple(name.strip() for name in text.split(",")) if text is not None else None
    unknown = sorted(set(names or ()) - set(PASSES))
    if unknown:
        raise click.BadParameter(f"expected some of {', '.join(PASSES)}, found {unknown[0]!r}")
    return names


def named_sizes(context: click.Context, parameter: click.Parameter, text: str | None) -> dict[str, int]:
    """ "batch=8,tokens=128" -> the size of each free dimension."""
    pairs = [pair.partition("=") for pair in text.split(",")] if text else []
    for name, _, size in pairs:
        if not (name and size.strip().isdecimal() and int(size) > 0):
            raise click.BadParameter(f"expected NAME=SIZE, found {name!r} and {size!r}")
    return {name.strip(): int(size) for name, _, size in pairs}


@click.command(
    epilog="Exit codes: 0 written; 1 file error; 2 usage; 3 no rewrite; 4 not supported; 5 proof failed, or slower."
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=GivenPath(dir_okay=False, path_type=Path), required=True, help="OUT.onnx")
@click.option("--read", "reads", multiple=True, metavar="NAME[INDEX]", help="Output part in use: 'hidden[:,0]'.")
@click.option("--only", callback=_passes, metavar="PASSES", help=f"Some of {', '.join(PASSES)}.  [default: all]")
@click.option("--require", callback=_passes, metavar="PASSES", help="Passes that must rewrite something.")
@click.option("--packed", metavar="MASK", help="Compute only tokens that this input shows: attention_mask.")
@click.option("--inputs", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Proof inputs, .npz.")
@click.option("--inputs-only", is_flag=True, help="Prove on the inputs of --inputs alone.")
@click.option("--dims", callback=named_sizes, metavar="NAME=SIZE,...", help="Sizes for counting costs and timing.")
@click.option("--proof", type=click.Choice(["float64", "float32"]), default="float64", show_default=True)
@click.option(
    "--time", "timed", is_flag=True, help="Measure before and after in ONNX Runtime, one thread, batch 1 and 8."
)
@click.option("--json", "as_json", is_flag=True, help="Print the manifest instead of lines.")
def rewrite(
    file: Path,
    output: Path,
    reads: tuple[str, ...],
    only: tuple[str, ...] | None,
    require: tuple[str, ...] | None,
    packed: str | None,
    inputs: Path | None,
    inputs_only: bool,
    dims: dict[str, int],
    proof: str,
    timed: bool,
    as_json: bool,
) -> None:
    """Rewrite a transformer exactly: FILE is any ONNX model, OUT.onnx computes the same with less work."""
    from common.files import check_writable, naming

    with _garbage_not_collected():
        from export.compiler.errors import BadRequest, NothingToRewrite, NotSupported, ProofFailed, Slower
        from export.rewrite_file import Request, rewrite_file

    if output.resolve() == file.resolve():
        raise click.UsageError(f"{output}: expected another file than the source")
    if inputs_only and not inputs:
        raise click.UsageError("--inputs-only: expected --inputs FILE.npz, too")
    request = Request(reads, only or PASSES, require or (), inputs, dims, proof, timed, inputs_only, packed)
    codes: dict[type[Exception], int] = {BadRequest: 2, NothingToRewrite: 3, NotSupported: 4, ProofFailed: 5}
    codes |= {Slower: 5, OSError: 1}
    try:
        with naming(output):
            check_writable(output.parent)
        with progress() as say:
            written = rewrite_file(file, output, request, say)
    except tuple(codes) as error:
        code = next(number for kind, number in codes.items() if isinstance(error, kind))
        name = printable(str(file))
        if isinstance(error, NothingToRewrite):
            for line in error.passes:
                click.echo(f"  {printable(line)}", err=True)
            error = NothingToRewrite(error.reason)
        reason = in_words(error).removeprefix(f"{name}: ")
        click.echo(f"Error: {name}: {reason}; nothing written", err=True)
        click.get_current_context().exit(code)
    if as_json:
        click.echo(json.dumps(written.manifest | {"timed": [asdict(timing) for timing in written.timed]}, indent=2))
    else:
        _print(file, output, written)


@contextmanager
def _garbage_not_collected() -> Iterator[None]:
    """Python's garbage collector skips, now and later, what is imported in the block.

    That saves a quarter of this command's processor time. Acts only once in a process: later the collector would skip
    graphs that it should free.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yields a function that gets the name of the current step; a terminal shows the name every five seconds."""
    steps, done = ["reading the file"], threading.Event()

    def show() -> None:
        start = time.monotonic()
        while not done.wait(PROGRESS_SECONDS):
            click.echo(f"  {time.monotonic() - start:.0f} s: {steps[-1]}", err=True)

    if sys.stderr.isatty():
        threading.Thread(target=show, daemon=True).start()
    try:
        yield steps.append
    finally:
        done.set()


def _print(file: Path, output: Path, written: Written) -> None:
    from export.pass_report import step_lines

    sizes = ", ".join(f"{name}={size}" for name, size in written.sizes.items())
    click.echo(f"Read {file}")
    work = written.rewritten.work
    for line in step_lines("as it was", work, f" at {sizes}" if sizes else "", written.rewritten.steps):
        click.echo(line)
    if fixed := written.manifest["fixed_inputs"]:
        names = f"{', '.join(fixed[:3])}{' …' if len(fixed) > 3 else ''}"
        width = 25 if work.uncounted else 16
        click.echo(f"  {'now constant':16}{len(fixed):>{width}}  inputs with a default, as all weights are: {names}")
    for proof in written.proofs:
        click.echo(f"Proved {proof}")
    for line in written.manifest["not_compared"]:
        click.echo(line)
    for timing in written.timed:
        click.echo(f"Timed {timing}")
    files = " and ".join(str(output.with_name(name)) for name in written.files)
    size_mb = f"{written.source_bytes / 1e6:.1f} -> {sum(written.files.values()) / 1e6:.1f} MB"
    click.echo(f"Wrote {files} ({size_mb}), its manifest and a sample of its answers")


if __name__ == "__main__":
    rewrite()
