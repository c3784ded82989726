"""Proves that a rewritten graph computes what the original computes, in double and in the graph's own dtype.

In: both graphs and inputs. Out: `Proof`, or ProofFailed. No rewrite touches the original: numpy picks the reads from
its outputs.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from export.onnx_rewrites.errors import NotSupported, ProofFailed
from export.onnx_rewrites.evaluate import UnknownOperator, evaluate
from export.onnx_rewrites.inputs import Feeds
from export.onnx_rewrites.reads import Read

Array = NDArray[np.generic]

FLOAT64_TOLERANCE = 1e-10
TOLERANCES = {"float32": 1e-5, "float16": 5e-3}  # relative to the outputs' size
WORST = {"float32": 3, "float16": 10}  # limit of the original's own error, in tolerances
FILL = 1e8  # networks write larger numbers into masked places


@dataclass(frozen=True)
class Proof:
    """`error` is the largest, relative to the outputs' size; `beside` names the reference."""

    precision: str
    error: float
    tolerance: float
    rounds: int
    beside: str = "the original"

    def __str__(self) -> str:
        limit = f"at most {self.tolerance:.0e}, beside {self.beside}"
        return f"{self.precision}: {self.error:.1e} of the outputs' size ({limit}), {self.rounds} inputs"


def prove_double(
    original: ir.Model,
    rewritten: ir.Model,
    reads: Sequence[Read],
    inputs: Sequence[Feeds],
    expected: Sequence[Sequence[Array]] | None = None,
) -> Proof:
    """`expected`: what is read of the original's outputs, if known.

    Raises ProofFailed, and NotSupported as `double_answers`.
    """
    names = [str(value.name) for value in original.graph.outputs]
    expected = expected or [picked(names, outputs, reads) for outputs in double_answers(original, inputs)]
    worst = 0.0
    for before, after in zip(expected, double_answers(rewritten, inputs), strict=True):
        worst = max(worst, compare(before, after, "float64", FLOAT64_TOLERANCE))
    return Proof("float64", worst, FLOAT64_TOLERANCE, len(inputs))


def double_answers(model: ir.Model, inputs: Sequence[Feeds]) -> list[list[Array]]:
    """In float64; raises NotSupported if an operator has no such kernel."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)  # non-finite values are reported later
            return [evaluate(model, feeds) for feeds in inputs]
    except UnknownOperator as unknown:
        raise NotSupported(f"proof in double: {unknown}; --proof float32 goes without") from unknown


def compare_file(
    rewritten: ort.InferenceSession,
    inputs: Sequence[Feeds],
    original: Sequence[Sequence[Array]],
    exact: Sequence[Sequence[Array]],
    dtype: str,
    without: ir.Node | None = None,
) -> Proof:
    """The reference is `exact`, the original in double, or without it `original`; `without` is a reason for that.

    The tolerance is the dtype's or, if larger, twice the original's own error. Raises ProofFailed, and NotSupported if
    that error exceeds WORST.
    """
    tolerance, right = TOLERANCES[dtype], exact or original
    try:
        own = max(compare(*pair, dtype, WORST[dtype] * tolerance) for pair in zip(right, original, strict=True))
    except ProofFailed as failed:
        raise NotSupported(f"the file itself, beside its answers in float64: {failed}") from failed
    beside = "the original in float64" if exact else "the original"
    if without is not None:
        beside = f"the original in ONNX Runtime, as {without.op_type} has no reference in float64"
    if 2 * own > tolerance:
        tolerance, beside = 2 * own, f"{beside}; the original in {dtype} is off by {own:.1e}"
    error = max(
        compare(expected, list(answers(rewritten, feeds).values()), dtype, tolerance)
        for expected, feeds in zip(right, inputs, strict=True)
    )
    return Proof(dtype, error, tolerance, len(inputs), beside)


def session(path: Path, packed: bool = False) -> ort.InferenceSession:
    """On one thread; raises NotSupported if ONNX Runtime refuses the file. `packed`: faster, in more memory."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "0" if packed else "1")
    options.enable_cpu_mem_arena = packed
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # the error reports failures
    try:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors share no base class
        raise NotSupported(f"{path}: expected a file that ONNX Runtime runs, found {_line(error)}") from error


def answers(runner: ort.InferenceSession, feeds: Feeds) -> dict[str, Array]:
    """Raises NotSupported if the file does not run on these inputs."""
    names = [output.name for output in runner.get_outputs()]
    pasts = {array.shape for name, array in feeds.items() if "past" in name}
    try:
        found = dict(zip(names, runner.run(names, feeds), strict=True))
        if not pasts & {array.shape for array in found.values()}:
            return found
        zeros = {name: np.zeros(array.shape, array.dtype) for name, array in found.items()}
        del found  # memory holds the outputs once
        _run_into(zeros, runner, feeds)
        return zeros
    except Exception as error:
        raise NotSupported(f"expected the file to run on its inputs, found {_line(error)}") from error


def _run_into(zeros: dict[str, Array], runner: ort.InferenceSession, feeds: Feeds) -> None:
    """Runs with zeros in the outputs' memory: a cache of fixed length keeps what was there behind its tokens."""
    binding = runner.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for name, array in zeros.items():
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    runner.run_with_iobinding(binding)


def finite_answers(runner: ort.InferenceSession, feeds: Feeds, reads: Sequence[Read]) -> list[Array]:
    """The parts that are read. Raises BadRequest if there is no such part."""
    found = answers(runner, feeds)
    parts = picked(list(found), list(found.values()), reads)
    check_finite(parts)
    return parts


def check_finite(outputs: Sequence[Array]) -> None:
    """Raises NotSupported if an output is empty or not finite."""
    for position, array in enumerate(outputs):
        if not array.size or not np.isfinite(array.astype(np.float64)).all():
            raise NotSupported(f"output {position}: expected finite numbers, found {array.shape} with others or none")


def picked(names: Sequence[str], values: Sequence[Array], reads: Sequence[Read]) -> list[Array]:
    """Copies: a view would hold the whole output."""
    return [read.of(values[names.index(read.output)]).copy() for read in reads] if reads else list(values)


def compare(expected: Sequence[Array], found: Sequence[Array], precision: str, tolerance: float) -> float:
    """The largest error relative to the largest output; raises ProofFailed above the tolerance."""
    if len(expected) != len(found) or not expected:
        raise ProofFailed(f"{precision}: expected {len(expected)} outputs, found {len(found)}")
    worst = 0.0
    for position, (before, after) in enumerate(zip(expected, found, strict=True)):
        if before.shape != after.shape:
            raise ProofFailed(f"{precision}: output {position}: expected shape {before.shape}, found {after.shape}")
        if not before.size:
            raise ProofFailed(f"{precision}: output {position}: expected elements to compare, found none")
        left, right = before.astype(np.float64), after.astype(np.float64)
        if not np.isfinite(left).all():
            raise ProofFailed(f"{precision}: output {position} of the graph itself is not finite: give --inputs")
        error = _error(left, right)
        if not error <= tolerance:  # NaN fails too
            limit = f"expected an error of at most {tolerance:.0e}"
            raise ProofFailed(
                f"{precision}: output {position}: {limit}, found {error:.1e}; other --inputs may suit it better"
            )
        worst = max(worst, error)
    return worst


def _error(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """The largest, relative to the largest number. What fills masked places would hide it and stands apart."""
    filled = np.abs(left) >= FILL
    parts = [(left[part], right[part]) for part in (filled, ~filled) if part.any()]
    errors = [np.abs(known - new).max() / (np.abs(known).max() or 1.0) for known, new in parts]
    return float(np.max(errors))  # NaN stays


def _line(error: Exception) -> str:
    """ONNX Runtime's message without its codes and source files."""
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : |\S+\.(?:cc|h):\d+ \S+ ", "", " ".join(str(error).split()))
    return re.sub(
        r"^Non-zero status code returned while running (\w+) node\. Name:('[^']*') Status Message: ", r"\1 \2: ", text
    )[:300]
