"""Command line: whether two ONNX files answer alike, and which is faster."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from export.rewrite import named_sizes, progress
from vitbn_packages import in_words

DIFFERENT, SLOWER = 4, 5


@click.command(
    epilog="Exit codes: 0 equal; 1 file error; 2 usage; 3 not comparable; 4 different; 5 equal, and B is slower."
)
@click.argument("first", metavar="A.onnx", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("second", metavar="B.onnx", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--read", "reads", multiple=True, metavar="NAME[INDEX]", help="Part of A's output that B has.")
@click.option("--packed", metavar="MASK", help="The input that hides tokens from B, as of vitbn rewrite.")
@click.option("--inputs", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="More inputs, .npz.")
@click.option("--inputs-only", is_flag=True, help="Draw no inputs beside those of --inputs.")
@click.option("--dims", callback=named_sizes, metavar="NAME=SIZE,...", help="Sizes for timing.")
@click.option("--proof", type=click.Choice(["float64", "float32"]), default="float64", show_default=True)
@click.option("--batch", "batches", type=click.IntRange(min=1), multiple=True, default=(1, 8), show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
def compare(
    first: Path,
    second: Path,
    reads: tuple[str, ...],
    packed: str | None,
    inputs: Path | None,
    inputs_only: bool,
    dims: dict[str, int],
    proof: str,
    batches: tuple[int, ...],
    threads: int,
    as_json: bool,
) -> None:
    """Compare A.onnx and B.onnx in ONNX Runtime: answers on drawn inputs, and speed in interleaved rounds.

    Equal: B differs from A's float64 by at most 1e-5 of an output's size, or twice what A itself does.
    """
    from export.compare_files import compare_files
    from export.compiler.errors import BadRequest, ForeignError
    from export.rewrite_file import Request

    if inputs_only and not inputs:
        raise click.UsageError("--inputs-only: expected --inputs FILE.npz, too")
    exit_with = click.get_current_context().exit
    try:
        with progress() as say:
            request = Request(reads, inputs=inputs, dims=dims, proof=proof, inputs_only=inputs_only, packed=packed)
            compared = compare_files(first, second, request, batches, threads, say)
    except (ForeignError, OSError) as error:
        click.echo(f"Error: {in_words(error)}", err=True)
        exit_with(2 if isinstance(error, BadRequest) else 3 if isinstance(error, ForeignError) else 1)
    if as_json:
        click.echo(json.dumps(asdict(compared), indent=2))
    else:
        click.echo(f"Equal {compared.proof}" if compared.proof else f"Different {compared.difference}")
        for timing in compared.timed:
            click.echo(f"Timed {timing}")
    if not compared.proof:
        exit_with(DIFFERENT)
    if compared.slower:
        exit_with(SLOWER)


if __name__ == "__main__":
    compare()
