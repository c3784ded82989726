"""Runs a file in ONNX Runtime, or a graph in float64.

In: a file or a graph, and inputs. Out: its outputs.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import re
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from google.protobuf.message import DecodeError

from export.compiler.errors import NoReference, NotSupported, ProcessEnded
from export.compiler.graph.constants import Array
from export.compiler.graph.embedded_weights import LARGE, outline
from export.compiler.operators.evaluate import UnknownOperator, evaluate
from export.compiler.proof.inputs import Feeds

Arrays = list[Array]
Result = TypeVar("Result")

SIGNATURE = r"[\w:&*<>,~ ]*\((?:[^()]|\([^()]*\))*\) (?:const )?"  # of a function of C++
STALE_SHAPES = r"the file declares an inner shape that is stale, \1; without graph.value_info it may run"
Level: TypeAlias = ort.GraphOptimizationLevel
EVERYTHING = Level.ORT_ENABLE_ALL
WITHOUT_LAYOUTS = Level.ORT_ENABLE_EXTENDED  # the channels of convolutions are not laid out in blocks
AS_WRITTEN = Level.ORT_DISABLE_ALL

EMPTY_S = 60  # limit of a call with empty inputs
FOLDED = 1_000_000  # bytes of the largest constant that a large file's session computes at its start


def is_large(path: Path) -> bool:
    """Whether a model's file and the files of its weights have more than LARGE bytes."""
    if (size := path.stat().st_size) > LARGE:
        return True
    try:
        tensors = onnx.load(path, load_external_data=False).graph.initializer
    except DecodeError:
        return False
    weight_files = {
        Path(path.parent, entry.value)
        for tensor in tensors
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return size + sum(file.stat().st_size for file in weight_files if file.exists()) > LARGE


class Runner:
    """Runs a file in ONNX Runtime.

    A `large` file gets a new session for every run, because weights that a session has read or transposed stay in
    memory as long as the session lives. By default `is_large` decides. `threads`, `level` and, for smaller files,
    `packed` are as in `session`. Raises NotSupported if ONNX Runtime refuses the file, ProcessEnded if it ends its
    process: its optimiser does so for some files.
    """

    def __init__(
        self,
        path: Path,
        packed: bool = False,
        threads: int = 1,
        level: Level = EVERYTHING,
        large: bool | None = None,
    ) -> None:
        self.path, self.threads, self.level = path, threads, level
        self.large = is_large(path) if large is None else large
        self.packed = packed and not self.large
        options = path, self.packed, self.large, threads, level
        _apart(lambda: bool(session(*options)), f"{path}: expected a file that ONNX Runtime runs")
        self.session = session(*options)
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.outputs = [value.name for value in self.session.get_outputs()]
        self.accepted = {*self.inputs, *(value.name for value in self.session.get_overridable_initializers())}

    def __call__(self, feeds: Feeds) -> dict[str, Array]:
        """The outputs by name. `feeds` may hold inputs that the file lacks. Raises NotSupported if it does not run."""
        names, feeds = self.outputs, self._accepted(feeds)
        past_shapes = {array.shape for name, array in feeds.items() if "past" in name}
        try:
            outputs = dict(zip(names, self._ready().run(names, feeds), strict=True))
            if not past_shapes & {array.shape for array in outputs.values()}:
                return outputs
            zeros = {name: np.zeros(array.shape, array.dtype) for name, array in outputs.items()}
            del outputs  # so that memory holds the outputs only once
            self._run_into(zeros, feeds)
            return zeros
        except Exception as error:
            raise NotSupported(f"expected the file to run on its inputs, found {_line(error)}") from error

    def call(self, feeds: Feeds) -> Callable[[], object]:
        """A function that runs the file on `feeds`, for timing; a new session is warmed up first."""
        ready, accepted = self._ready(), self._accepted(feeds)
        if self.large:
            ready.run(None, accepted)
        return lambda: ready.run(None, accepted)

    def at(self, level: Level) -> Runner:
        """A runner of the same file at another level of ONNX Runtime's optimiser."""
        return Runner(self.path, self.packed, self.threads, level, self.large)

    def _accepted(self, feeds: Feeds) -> Feeds:
        return {name: array for name, array in feeds.items() if name in self.accepted}

    def _ready(self) -> ort.InferenceSession:
        if not self.large:
            return self.session
        return session(self.path, lean=True, threads=self.threads, level=self.level)

    def _run_into(self, zeros: dict[str, Array], feeds: Feeds) -> None:
        """Runs the file with its outputs in the arrays `zeros`.

        ONNX Runtime does not write a cache of fixed length behind its tokens: what was in memory would stay there.
        """
        ready = self._ready()
        binding = ready.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for name, array in zeros.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        ready.run_with_iobinding(binding)


def session(
    path: Path, packed: bool = False, lean: bool = False, threads: int = 1, level: Level = EVERYTHING
) -> ort.InferenceSession:
    """A session on the CPU. Raises NotSupported if ONNX Runtime refuses the file.

    packed: keeps a second, packed copy of the weights, which is faster and takes more memory. lean: computes no large
    constants at its start, which is slower and takes less memory. level: what ONNX Runtime's optimiser may do.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.add_session_config_entry("session.disable_prepacking", "0" if packed else "1")
    if lean:
        options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", str(FOLDED))
    options.enable_cpu_mem_arena = packed
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # the error reports failures
    data = outline(path) if path.stat().st_size > LARGE else None  # else protobuf holds the weights twice
    if data is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(path.resolve().parent)
        )
    try:
        # The fallback, to the same provider, would print lines.
        return ort.InferenceSession(data or path, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:  # ONNX Runtime's errors share no base class
        raise NotSupported(f"{path}: expected a file that ONNX Runtime runs, found {_line(error)}") from error


def answers_apart(runner: Runner, feeds: Feeds) -> dict[str, Array]:
    """The outputs by name, computed in a separate process.

    On empty inputs some of ONNX Runtime's kernels divide by zero, abort the process or never end. Raises NotSupported
    if ONNX Runtime refuses the inputs, ProcessEnded if the process ends or takes longer than EMPTY_S seconds.
    """
    return _apart(lambda: runner(feeds), "expected an answer", EMPTY_S)


def _apart(run: Callable[[], Result], expected: str, limit_s: float | None = None) -> Result:
    """The result of `run` in a separate process, which ONNX Runtime may end. `expected`: the result, in words.

    Raises the NotSupported of `run`, ProcessEnded if the process ends or exceeds the limit.
    """
    fork = multiprocessing.get_context("fork")  # the session has no threads
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_send, args=(run, sender), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child does not use
        process.start()
    sender.close()
    try:
        if not receiver.poll(limit_s):
            raise ProcessEnded(f"{expected}, found no answer within {limit_s} s")
        result: tuple[Result] | str = receiver.recv()
    except EOFError:
        raise ProcessEnded(f"{expected}, found the end of ONNX Runtime's process") from None
    finally:
        process.kill()
        process.join()
    if isinstance(result, str):
        raise NotSupported(result)
    return result[0]


def _send(run: Callable[[], object], sender: Connection) -> None:
    """Sends the result in a tuple, or the text of an error."""
    faulthandler.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries report their abort there
    try:
        sender.send((run(),))
    except NotSupported as error:
        sender.send(str(error))


def double_answers(model: ir.Model, feeds: Feeds) -> Arrays:
    """The graph's outputs in float64, by numpy. Raises NoReference if an operator has no such kernel."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)  # non-finite values are reported later
            return evaluate(model, feeds)
    except UnknownOperator as unknown:
        raise NoReference(f"proof in double: {unknown}", "--proof float32 goes without") from unknown


def _line(error: Exception) -> str:
    """ONNX Runtime's message without its codes and source files."""
    text = " ".join(str(error).split())
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : (?:Load model from .+? failed: ?)?", "", text)
    text = re.sub(rf"\S+\.(?:cc|h):\d+ (?:{SIGNATURE}|\S+ )", "", text)
    text = re.sub(
        r"(?<=Status Message: ).*Shape mismatch attempting to re-use buffer\. (\S+ != \S+)\..*", STALE_SHAPES, text
    )
    return re.sub(
        r"^Non-zero status code returned while running (\w+) node\. Name:('[^']*') Status Message: ", r"\1 \2: ", text
    )[:300]
