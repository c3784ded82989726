"""Times decoders before and after `vitbn rewrite`: a prompt in ONNX Runtime, and tokens in onnxruntime-genai."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.measure.decoder_networks import AS_EXPORTED, DECODERS, PRUNED, Decoder, files, prepare
from benchmarks.measure.devices import cores
from benchmarks.measure.foreign_candidates import Call, check_answer, reason_of
from benchmarks.measure.options import seconds_option
from benchmarks.measure.result_file import Record, Row
from benchmarks.reporting.recorded_decorator import recorded
from common.given_path import GivenPath

PROMPT, DECODED = 256, 16  # tokens
CACHED = 600  # tokens in the cache of keys and values; Gemma 3 needs more than the 512 of its window
PREFILL, FIRST_TOKEN, DECODING = "prefill", "first token", "decoding"
SAME_TOKENS = 20  # tokens that must be the same in all float32 files
TOLERANCE = 1e-3  # of the size of the logits


@click.command()
@click.argument("folder", type=GivenPath(file_okay=False, path_type=Path))
@click.option("--network", "names", type=click.Choice(list(DECODERS)), multiple=True, help="[default: all]")
@seconds_option(15, "At most, for each network, number of threads and kind; seven rounds in any case.")
@recorded("decoders", "left_out")
def decoders(record: Record, folder: Path, names: tuple[str, ...], seconds: float) -> None:
    """Time decoders with drawn weights as exported, rewritten and with the builder's `prune_lm_head`.

    A prompt of 256 tokens in ONNX Runtime; in onnxruntime-genai the time to the first token and that of 16 further
    ones. FOLDER keeps the files, up to 4 GB a network.
    """
    from export.compiler.errors import ForeignError

    for name in names or DECODERS:
        decoder, decoder_folder = DECODERS[name], folder / name
        decoder_fields = {"network": name, "title": decoder.title}
        try:
            prepare(decoder, decoder_folder)
        except (ForeignError, ImportError, ChildProcessError) as error:
            reason = reason_of(error)
            record.add(decoder_fields | {"reason": reason})
            click.echo(f"{name}: left out: {reason}")
            continue
        click.echo(f"{name}: {', '.join(candidate for candidate, _ in files(decoder_folder))} in {decoder_folder}")
        for row in measure(decoder, decoder_folder, seconds, name):
            record.add({**decoder_fields, **row})


def measure(decoder: Decoder, folder: Path, seconds: float, name: str) -> Iterator[Row]:
    """Times a decoder's files: a row for each number of threads, kind of call and file.

    `seconds`: for each number of threads and kind. `name`: for the progress bar.
    """
    macs = {candidate: prompt_macs(path / "model.onnx") for candidate, path in files(folder)}
    for threads in dict.fromkeys((1, cores())):
        for calls_by_kind in (in_onnx_runtime, in_generator) if decoder.precision else (in_onnx_runtime,):
            for kind, calls in calls_by_kind(folder, decoder, threads).items():
                for row in _timed_rows(calls, seconds, f"{name}, {kind}, threads: {threads}"):
                    yield {"kind": kind, "threads": threads, "macs": macs[row["candidate"]], **row}
            gc.collect()


def _timed_rows(calls: Mapping[str, Call], seconds: float, title: str) -> Iterator[Row]:
    """A row for each candidate of `calls`, with its speed relative to the files AS_EXPORTED and PRUNED."""
    from benchmarks.measure.interleaved_timing import STABLE_ROUNDS, ratio_with_interval, time_interleaved

    measured = time_interleaved(calls, seconds, title, STABLE_ROUNDS)
    for candidate, durations in measured.items():
        ratios = {
            other: vars(ratio_with_interval(measured[other], durations))
            for other in (AS_EXPORTED, PRUNED)
            if other in measured and other != candidate
        }
        yield {"candidate": candidate, **durations.row(), "ratios": ratios}


def prompt_macs(path: Path) -> int:
    """Multiply-accumulates of a prompt of PROMPT tokens."""
    import onnx_ir as ir

    from export.compiler.graph.symbolic_shapes import Shapes
    from export.compiler.operators.costs import graph_work
    from export.compiler.pipeline import prepared

    model = prepared(ir.load(path)).model
    return graph_work(Shapes(model.graph, sizes(model.graph))).macs


def sizes(graph: Any) -> dict[str, int]:
    """Symbol -> size of the graph's free dimensions, to count the work of a prompt without past keys and values."""
    from export.compiler.proof.inputs import channels, first_dimensions, free_dimensions

    lengths = {symbol: 0 if symbol.startswith("past") else PROMPT for symbol in free_dimensions(graph)}
    return lengths | dict.fromkeys(first_dimensions(graph), 1) | channels(graph)


def in_onnx_runtime(folder: Path, decoder: Decoder, threads: int) -> dict[str, dict[str, Call]]:
    """Kind -> candidate -> call that computes a prompt. Raises click.ClickException if the logits differ."""
    import onnx_ir as ir

    from export.compiler.graph.requested_output_parts import parse_read
    from export.compiler.pipeline import prepared
    from export.compiler.proof.inputs import draw
    from export.compiler.proof.runner import session

    model = prepared(ir.load(folder / AS_EXPORTED / "model.onnx")).model
    feeds = draw(model.graph, sizes(model.graph))
    calls: dict[str, Call] = {}
    expected: Any = None
    read = parse_read(decoder.reads[0])
    for candidate, path in files(folder):
        run = session(path / "model.onnx", packed=True, threads=threads).run
        calls[candidate] = partial(run, None, feeds)
        logits = run([read.output], feeds)[0]
        if candidate == AS_EXPORTED:
            logits = expected = read.of(logits)
        check_answer(candidate, expected, logits, TOLERANCE)
    return {PREFILL: calls}


def in_generator(folder: Path, decoder: Decoder, threads: int) -> dict[str, dict[str, Call]]:
    """Kind -> candidate -> call that generates the first token, or DECODED further tokens.

    Raises click.ClickException if the tokens of float32 files differ.
    """
    import numpy as np
    import onnxruntime_genai as og

    prompt = np.random.default_rng(0).integers(4, decoder.sizes["vocab_size"], PROMPT).astype(np.int32)
    first_token: dict[str, Call] = {}
    further_tokens: dict[str, Call] = {}
    expected: list[int] = []
    for candidate, path in files(folder):
        config = og.Config(str(path))
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
        parameters = og.GeneratorParams(model := og.Model(config))
        parameters.set_search_options(do_sample=False, max_length=CACHED, min_length=CACHED)

        def generate_first(model: Any = model, parameters: Any = parameters) -> Any:
            generator = og.Generator(model, parameters)
            generator.append_tokens(prompt)
            generator.generate_next_token()
            return generator

        def generate_further(generator: Any) -> None:
            """Goes back to the prompt's last token, so that every call starts there, and generates DECODED tokens."""
            generator.rewind_to(PROMPT - 1)
            generator.append_tokens(prompt[-1:])
            for _ in range(DECODED):
                generator.generate_next_token()

        generator = generate_first()
        for _ in range(SAME_TOKENS - 1):
            generator.generate_next_token()
        tokens = generator.get_sequence(0)[PROMPT:].tolist()
        expected = expected or tokens
        if tokens != expected and decoder.precision == "fp32":
            raise click.ClickException(f"{candidate}: expected the tokens {expected}, found {tokens}")
        first_token[candidate], further_tokens[candidate] = generate_first, partial(generate_further, generator)
    return {FIRST_TOKEN: first_token, DECODING: further_tokens}
