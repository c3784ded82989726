"""The candidates of benchmarks/foreign.py, on one thread or a GPU, with the same inputs; and what its presets share.

In: a network's ONNX files. Out: a callable for each candidate, or why the candidate is left out: it fails, or its
answers differ from those of the plain file.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from numpy.typing import NDArray

from benchmarks.measure.foreign_networks import Foreign
from export.compiler.proof.tolerances import relative_error
from export.precision_table import Device

Array = NDArray[Any]
Outputs = Sequence[Array]
Feeds = Mapping[str, Array]
Call = Callable[[], Any]

PLAIN, OPTIMISER, OURS = "plain", "ONNX Runtime's optimiser", "rewritten"
OPENVINO, OPENVINO_OURS = "OpenVINO", "OpenVINO, rewritten"
TOLERANCE = 1e-3  # relative to the size of the outputs; fused kernels approximate Gelu

BASES = {OPTIMISER: PLAIN, OURS: PLAIN, OPENVINO: PLAIN, OPENVINO_OURS: OPENVINO}
"""Candidate -> the candidate that its speed is relative to."""


def candidates(
    files: Mapping[str, Path], read: Callable[[Outputs], Array], feeds: Feeds, device: Device = "cpu"
) -> tuple[dict[str, Call], dict[str, str]]:
    """A call of each candidate, and why others are left out. `read` takes the compared part out of plain outputs.

    On a GPU inputs and outputs stay on the device, and OpenVINO is no candidate.
    """
    from export.compiler.proof.runner import session
    from export.errors import ExportError

    def in_onnx_runtime(path: Path) -> Call:
        return partial(session(path, packed=True).run, None, feeds) if device == "cpu" else _on_cuda(path, feeds)

    makers: dict[str, Callable[[], Call]] = {name: partial(in_onnx_runtime, path) for name, path in files.items()}
    if device == "cpu":
        makers |= {
            OPENVINO: partial(_openvino, files[PLAIN], feeds),
            OPENVINO_OURS: partial(_openvino, files[OURS], feeds),
        }
    calls: dict[str, Call] = {}
    left_out: dict[str, str] = {}
    expected: Array | None = None
    for name, make in makers.items():
        try:
            call = make()
            called = call()
            outputs = [called[k] if device == "cpu" else called[k].numpy() for k in range(len(called))]
        except (ExportError, RuntimeError) as failure:
            left_out[name] = reason_of(failure, 200)
            continue
        answer = outputs[0] if OURS in name else read(outputs)
        expected = answer if expected is None else expected
        error = relative_error(expected, answer)
        if error <= TOLERANCE:  # false for NaN, too
            calls[name] = call
        else:
            left_out[name] = f"its answers differ by {error:.1e} of their size"
    return calls, left_out


def reason_of(failure: Exception, longest: int = 300) -> str:
    """The failure's message on one line, cut after `longest` characters."""
    return " ".join(str(failure).split())[:longest]


def check_answer(candidate: str, expected: Array, answer: Array, tolerance: float) -> None:
    """Raises click.ClickException if the answers differ by more than `tolerance`, relative to their size."""
    from export.compiler.errors import ProofFailed
    from export.compiler.proof.compare import compare

    try:
        compare([expected], [answer], "float32", tolerance)
    except ProofFailed as error:
        raise click.ClickException(f"{candidate}: {error}") from error


def optimise(network: Foreign, plain: Path, folder: Path) -> tuple[Path, dict[str, int]]:
    """The file that ONNX Runtime's optimiser writes into `folder`, and fused operator -> number of its nodes."""
    from onnxruntime.transformers import optimizer

    path = folder / "optimised.onnx"
    source = network.fusible(folder) if network.fusible else plain
    sizes = {"num_heads": network.heads, "hidden_size": network.width}
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the optimiser warns of every fusion that finds no place
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimised = optimizer.optimize_model(str(source), model_type=network.family, **sizes)
            optimised.save_model_to_file(str(path))
            fused: dict[str, int] = optimised.get_fused_operator_statistics()
    finally:
        logging.disable(level)
    return path, {operator: count for operator, count in fused.items() if count}


def _on_cuda(path: Path, feeds: Feeds) -> Call:
    """A call returns when the device has finished, with values on the device."""
    import onnxruntime

    from benchmarks.measure.run_onnxruntime import cuda_session

    session = cuda_session(path, {"use_tf32": "0"})
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda", 0)

    def call() -> Any:
        session.run_with_iobinding(binding)
        return binding.get_outputs()

    return call


def _openvino(path: Path, feeds: Feeds) -> Call:
    from export.engines.openvino_engine import openvino_module

    core = openvino_module().Core()
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(path), "CPU", settings)
    return partial(compiled.create_infer_request().infer, dict(feeds))
