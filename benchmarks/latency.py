"""In: networks, runtimes, precisions, batch sizes. Out: interleaved times of calls, compared with PyTorch eager."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.measure.candidate import Candidate
from benchmarks.measure.devices import cores
from benchmarks.measure.engines import COMPARED, DEFAULT_PRECISIONS, DEFAULT_RUNTIMES, RUNTIMES, candidates
from benchmarks.measure.measured_network import Network, shipped_network
from benchmarks.measure.options import (
    WithPresets,
    checkpoint_options,
    chosen,
    device_option,
    models_to_measure,
    names_option,
    presets,
    seconds_option,
    user_networks,
)
from benchmarks.measure.result_file import Record
from benchmarks.reporting.recorded_decorator import recorded
from export.precision_table import PRECISIONS, Precision
from models.catalog import SHIPPED
from models.networks.config import MODEL_NAMES, ModelConfig

NAMES = tuple(dict.fromkeys((*MODEL_NAMES, *SHIPPED)))
DEFAULT_BATCH, DEFAULT_DEPTH = 5000, 6

PUBLISHED_DEPTHS = {"vit": 6, "vitbnffn": 1, "vitbn": 1}
CAVEAT = (
    "The published comparison gives ViT six blocks and the BatchNorm models one: it shows the depth, not the norm."
    " Without --published-configuration all have the same depth."
)


@presets("rewrites", "sweep", "frontier", "norms", "engines", "operators", "gpu")
@click.command(cls=WithPresets)
@click.option("--batch", "batches", type=click.IntRange(1), multiple=True, help="Images per call; repeatable.  [5000]")
@names_option(
    *("--model", "models", NAMES),
    default=COMPARED,
    show_default=True,
    help=f"Some of {', '.join(MODEL_NAMES)}; or shipped networks, such as vitbn-tiny. Repeatable.",
)
@names_option(
    *("--runtime", "runtimes", RUNTIMES),
    help=f"all, or some of {', '.join(RUNTIMES)}. Repeatable.  [CPU: {', '.join(DEFAULT_RUNTIMES['cpu'])}; GPU: "
    f"{', '.join(DEFAULT_RUNTIMES['cuda'])}]",
)
@names_option("--precision", "precisions", PRECISIONS, help="Repeatable.  [CPU: fp32; GPU: fp32, fp16]")
@click.option("--depth", type=click.IntRange(1), help=f"Blocks of every transformer.  [{DEFAULT_DEPTH}]")
@device_option
@click.option("--threads", type=click.IntRange(1), help="Threads of each runtime.  [all cores]")
@seconds_option(180, "At most, for the rounds of a batch size; three rounds in any case. First calls come before.")
@click.option("--published-configuration", "published", is_flag=True, help="ViT at depth 6, BatchNorm models at 1.")
@checkpoint_options
@recorded()
def latency(
    record: Record,
    batches: tuple[int, ...],
    models: tuple[str, ...],
    runtimes: tuple[str, ...],
    precisions: tuple[Precision, ...],
    depth: int | None,
    wanted: str,
    threads: int | None,
    seconds: float,
    published: bool,
    checkpoints: tuple[Path, ...],
    dataset: str | None,
    data_dir: Path | None,
) -> int:
    """Time calls with --batch images in PyTorch, ONNX Runtime and more, before and after the rewrites.

    Weights come from the shipped checkpoint of this depth, or are random: time does not depend on them. Every
    candidate is first compared with PyTorch eager. All take turns until the medians are stable or --seconds are spent.
    "x PyTorch" is the speed relative to PyTorch eager in float32, with a 95 % interval; for a lower precision also the
    speed relative to PyTorch eager in that precision.
    """
    from_checkpoints = user_networks(checkpoints, dataset, data_dir)
    models = models_to_measure(chosen(models, NAMES), from_checkpoints)
    _check(models, depth, published)
    from benchmarks.measure.devices import choose

    device, threads = choose(wanted), threads or cores()
    record.device, record.threads = device, threads
    networks = [*(_network(name, depth, published) for name in models), *from_checkpoints]
    runtimes = chosen(runtimes, RUNTIMES) or DEFAULT_RUNTIMES[device]
    precisions = chosen(precisions, PRECISIONS) or DEFAULT_PRECISIONS[device]
    compared = candidates(networks, runtimes, precisions, threads, device)
    return int(_compare(compared, batches or (DEFAULT_BATCH,), seconds, published, record))


def _check(models: Sequence[str], depth: int | None, published: bool) -> None:
    if published and (depth or not set(models) <= set(COMPARED)):
        excluded = f"--depth and models other than {','.join(COMPARED)}"
        raise click.UsageError(f"--published-configuration excludes {excluded}")
    trained = [name for name in models if name not in MODEL_NAMES]
    if trained and depth:
        raise click.UsageError(f"{','.join(trained)}: a shipped network has its own depth, without --depth")


def _network(name: str, depth: int | None, published: bool) -> Network:
    if name not in MODEL_NAMES:
        return shipped_network(name)
    depths = PUBLISHED_DEPTHS if published else {}
    return Network(name, ModelConfig(model=name, depth=depths.get(name, depth or DEFAULT_DEPTH)))


def _compare(
    candidates: Sequence[Candidate],
    batches: Sequence[int],
    seconds: float,
    published: bool,
    record: Record,
) -> bool:
    """Measures the candidates and prints tables. Returns whether an answer was wrong or no candidate was timed."""
    from benchmarks.measure.latency_measurement import Comparison
    from benchmarks.measure.peak_flops_and_bandwidth import Limits
    from benchmarks.reporting.tables.latencies import batch_table, closing_lines

    device, threads = candidates[0].device, candidates[0].threads
    limits = Limits(device, threads, tuple(dict.fromkeys(candidate.precision for candidate in candidates)))
    comparison = Comparison(record, limits, lambda rows: click.echo(batch_table(rows)))
    models = list(dict.fromkeys(candidate.model for candidate in candidates))
    # A GPU's memory holds a single network in all runtimes; on a CPU all networks take turns.
    groups = [models] if device == "cpu" else [[model] for model in models]
    for group in groups:
        of_group = [candidate for candidate in candidates if candidate.model in group]
        comparison.measure(of_group, batches, seconds)
    comparison.finish()
    rows, missing = comparison.rows, comparison.missing
    for line in closing_lines(rows, missing.rows, limits.best, CAVEAT if published else None):
        click.echo(line)
    return missing.wrong or not rows


if __name__ == "__main__":
    latency()
