"""Texts of different lengths, and the ways in which a client calls an encoder with them.

In: ONNX files of an encoder, and the lengths of a batch of texts. Out: a callable for each way, whose answers agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure.foreign_candidates import Call, check_answer
from benchmarks.measure.foreign_networks import IDS, MASK, WORDS

PADDED, ALONE, SORTED = "padded", "one text a call", "sorted by 8"
PACKED, CUT = "packed", "packed and cut"
INT8, INT8_CUT = "int8", "int8, packed and cut"
ROWS_READ = "y[:,0]"
SORTED_BATCH = 8  # texts of a call
TOLERANCE, INT8_TOLERANCE = 1e-4, 0.1  # relative to the size of the answers
CHUNKS = (0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.955, 1), (5, 68, 193, 314, 400, 465, 512, 512)
"""Quantiles, and lengths in tokens at these quantiles, of chunks of documents in huggingface/funes#167."""


def chunk_lengths(quantiles: Any) -> Any:
    """Lengths of chunks of documents, int64 as many as `quantiles`."""
    import numpy as np

    return np.interp(quantiles, *CHUNKS).astype(np.int64)


def short_lengths(rng: Any, count: int) -> Any:
    """Random lengths of short texts, int64 (count,)."""
    import numpy as np

    return np.clip(rng.lognormal(2.5, 0.6, count), 4, 128).astype(np.int64)


# Title -> a function from a random generator to the lengths of a batch of texts, in tokens.
LOADS: Mapping[str, Callable[[Any], Any]] = {
    "8 equal texts": lambda rng: [128] * 8,
    "8 chunks of documents": lambda rng: chunk_lengths(rng.random(8)).tolist(),
    "32 short texts": lambda rng: short_lengths(rng, 32).tolist(),
    "31 short texts and a long one": lambda rng: [12] * 31 + [256],
}


def packed_files(plain: Path, folder: Path, reads: Sequence[str] = ()) -> dict[str, Path]:
    """The plain file, the packed file, and the file packed after all other passes. `reads`: parts of its outputs.

    The proof runs in float32: float64 takes minutes.
    """
    from export.rewrite_file import Request, rewrite_file

    files = {PADDED: plain, PACKED: folder / "packed.onnx", CUT: folder / "cut.onnx"}
    tidied, all_passes = Request(reads, only=("tidy",)), Request(reads)
    for candidate, request in ((PACKED, tidied), (CUT, all_passes)):
        rewrite_file(plain, files[candidate], replace(request, proof="float32", packed=MASK))
    return files


def int8_files(files: Mapping[str, Path], folder: Path) -> dict[str, Path]:
    """The files PADDED and CUT after ONNX Runtime's dynamic quantisation."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from export.precision import without_warnings

    quantised = {INT8: folder / "int8.onnx", INT8_CUT: folder / "int8-cut.onnx"}
    subgraphs = {"EnableSubgraph": True}  # the products of a packed file are in a loop's subgraph
    options = {"op_types_to_quantize": ["MatMul"], "weight_type": QuantType.QInt8, "extra_options": subgraphs}
    with without_warnings():
        for candidate, source in ((INT8, PADDED), (INT8_CUT, CUT)):
            quantize_dynamic(files[source], quantised[candidate], **options)
    return quantised


def calls(files: Mapping[str, Path], lengths: list[int]) -> dict[str, Call]:
    """A call for each way, with random texts of `lengths` tokens. Raises click.ClickException if the answers differ."""
    import numpy as np

    from export.compiler.graph.requested_output_parts import parse_read
    from export.compiler.proof.runner import session

    read = parse_read(ROWS_READ)
    sessions = {name: session(path, packed=True) for name, path in files.items()}
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)  # (B, N)
    ids = np.where(mask, np.random.default_rng(1).integers(3, WORDS, mask.shape), 0)

    def in_one_call(name: str) -> Any:
        answer = sessions[name].run(None, {IDS: ids, MASK: mask})[0]
        return read.of(answer) if name in (PADDED, INT8) else answer

    def in_sorted_batches(size: int) -> Any:
        order, answers = np.argsort(lengths, kind="stable"), []
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            longest = max(lengths[index] for index in batch)
            feeds = {IDS: ids[batch, :longest], MASK: mask[batch, :longest]}
            answers.append(read.of(sessions[PADDED].run(None, feeds)[0]))
        return np.concatenate(answers)[np.argsort(order)]

    ways: dict[str, Call] = {name: partial(in_one_call, name) for name in files}
    ways |= {ALONE: partial(in_sorted_batches, 1), SORTED: partial(in_sorted_batches, SORTED_BATCH)}
    expected = ways[PADDED]()
    for name, call in ways.items():
        check_answer(name, expected, call(), INT8_TOLERANCE if name in (INT8, INT8_CUT) else TOLERANCE)
    return ways
