"""The command `to_tensorrt` without TensorRT's runtime: `python rehearsal.py EXPORTS`.

In: lines of standard input, each a JSON list of a folder, a file, a planted fault and the command's arguments; the
arguments `served FOLDER` use an engine as the benchmarks do. Out: per line the exit code; `stdout` and `stderr` in the
folder; the use of TensorRT in the file. A child runs each line, which saves the imports.

TensorRT's real bindings stand over libraries that do nothing. A `Conformant` replaces each object: it has exactly the
real class's attributes, and takes the arguments of the docstring's signature. ONNX Runtime computes, so this
shows which names exist, not what TensorRT does.
"""

import ctypes
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import tensorrt as trt
import tensorrt_bindings as real

from export.engines.tensorrt_engine import INPUT_NAME, OUTPUT_NAME
from export.engines.tensorrt_layers import ONNX_TYPES
from export.engines.tensorrt_support import element_types
from export.equivalence import onnx_classifier
from export.to_tensorrt import tensorrt as command

USED: list[list[Any]] = []  # class, attribute, arguments as text


class Memory(bytes):
    """IHostMemory that Python can read."""

    def __enter__(self) -> "Memory":
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Conformant:
    def __init__(self, kind: type) -> None:
        self.__dict__.update(kind=kind, state={})

    @property
    def __class__(self) -> type:  # Polygraphy asks isinstance(engine, trt.ICudaEngine)
        return self.__dict__["kind"]

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise TypeError(f"cannot become {kind}")

    def __getattr__(self, name: str) -> Any:
        kind = self.__dict__["kind"]
        member = getattr(kind, name)  # AttributeError if the real class lacks it
        if isinstance(member, property):
            USED.append([kind.__name__, name, ""])
            return self.answer(name, (), member.fget.__doc__.rpartition("->")[2])
        return lambda *args, **kwargs: self.call(name, member.__doc__, args, kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        kind = self.__dict__["kind"]
        USED.append([kind.__name__, name, str(value)])
        getattr(kind, name).fset.__doc__  # noqa: B018 - AttributeError where the real one cannot be set
        self.__dict__["state"][name] = value

    def __iter__(self) -> Iterator[Any]:
        kind = self.__dict__["kind"]
        if not (hasattr(kind, "__getitem__") and hasattr(kind, "__len__")):
            raise TypeError(f"{kind} cannot be iterated over")
        return iter(())

    def call(self, name: str, doc: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        returns = fits(name, doc, (self, *args), kwargs)
        USED.append([self.__dict__["kind"].__name__, name, ", ".join(map(str, (*args, *kwargs.values())))])
        return self.answer(name, (*args, *kwargs.values()), returns)

    def answer(self, name: str, args: tuple[Any, ...], returns: str) -> Any:
        kind, state = self.__dict__["kind"].__name__, self.__dict__["state"]
        if (kind, name) in ANSWERS:
            value = ANSWERS[kind, name]
            return value(self, *args) if callable(value) else value
        return state[name] if name in state else made(returns)


def fits(name: str, doc: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The return type of the docstring's first signature that fits; else TypeError."""
    for parameters, returns in re.findall(rf"^(?:\d+\. )?{name}\((.*)\) -> (.*)$", doc, re.MULTILINE):
        known = dict(re.findall(r"(\w+): ([\w.]+)", re.sub(r"<[^>]*>", "default", parameters)))
        required = [part.split(":")[0] for part in re.split(r", (?=\w+:)", parameters) if part and " = " not in part]
        given = dict(zip(known, args, strict=False)) | kwargs
        fit = len(given) == len(args) + len(kwargs) and set(given) <= set(known) and set(required) <= set(given)
        if fit and all(key == "self" or is_a(value, known[key]) for key, value in given.items()):
            return str(returns)
    raise TypeError(f"{name}{args}{kwargs} fits none of {doc.splitlines()}")


def is_a(value: Any, annotation: str) -> bool:
    kind = getattr(real, annotation.rpartition(".")[2], None) if annotation.startswith("tensorrt_bindings") else None
    if kind is trt.Dims:
        return isinstance(value, tuple)
    if kind is trt.IHostMemory:
        return isinstance(value, Memory)
    simple = {"str": str, "bool": bool, "tuple": tuple, "bytes": bytes, "typing.SupportsInt": int}
    return isinstance(value, kind or simple.get(annotation, object))


def made(returns: str) -> Any:
    returns = returns.strip()
    kind = getattr(real, returns.rpartition(".")[2], None) if returns.startswith("tensorrt_bindings") else None
    if kind is trt.IHostMemory:
        return Memory(b"plan")
    if kind and hasattr(kind, "__members__"):
        return next(iter(kind.__members__.values()))
    return Conformant(kind) if kind else {"bool": True, "int": 0}.get(returns)


def constructor(kind: type) -> Any:
    def construct(*args: Any) -> Conformant:
        fits("__init__", kind.__init__.__doc__, (object(), *args), {})
        return Conformant(kind)

    return construct


def parse(parser: Conformant, path: str) -> bool:
    GRAPH["proto"] = onnx.load(path)
    return True


def inspect(inspector: Conformant, format: Any) -> str:
    """A layer per node, in the graph's types."""
    proto = GRAPH["proto"]
    types = {name: ONNX_TYPES.get(number, "int64") for name, number in element_types(proto).items()}
    words = {"float32": "Float", "float16": "Half", "int64": "Int64"}
    layers = [
        {
            "Name": f"__myl_{i}",
            "Metadata": f"[ONNX Layer: {node.name}]",
            "Inputs": [{"Datatype": words[types[name]], "Format": "Linear"} for name in node.input if name],
            "Outputs": [{"Datatype": words[types[name]], "Format": "Linear"} for name in node.output],
        }
        for i, node in enumerate(proto.graph.node)
    ]
    if PLANTED == "another type":
        product = next(i for i, node in enumerate(proto.graph.node) if node.op_type in ("MatMul", "Conv"))
        layers[product]["Outputs"][0]["Datatype"] = "Half" if "Float" in str(layers[product]) else "Float"
    return json.dumps({"Layers": layers})


@cache
def reference() -> Any:
    return onnx_classifier(GRAPH["proto"].SerializeToString())


def execute(context: Conformant, stream: int) -> bool:
    state = context.__dict__["state"]
    shape = state["shape"]
    images = np.ctypeslib.as_array((ctypes.c_uint8 * int(np.prod(shape))).from_address(state[INPUT_NAME]))
    logits = reference()(images.reshape(shape)).copy()
    if PLANTED == "wrong answer":
        logits[0, 0] += 1
    if OUTPUT_NAME in state:  # a fixed address, as the benchmarks'
        ctypes.memmove(state[OUTPUT_NAME], logits.ctypes.data, logits.nbytes)
        return True
    target = state["allocator"].reallocate_output_async(OUTPUT_NAME, 0, logits.nbytes, 256, stream)
    ctypes.memmove(target, logits.ctypes.data, logits.nbytes)
    state["allocator"].notify_shape(OUTPUT_NAME, trt.Dims(logits.shape))
    return True


def address(context: Conformant, name: str, value: int) -> bool:
    context.__dict__["state"][name] = value
    return True


def keep(key: str) -> Any:
    def remember(context: Conformant, name: str, value: Any) -> bool:
        context.__dict__["state"][key] = value
        return True

    return remember


GRAPH: dict[str, onnx.ModelProto] = {}
ANSWERS: dict[tuple[str, str], Any] = {
    ("INetworkDefinition", "num_inputs"): 1,
    ("OnnxParser", "num_errors"): 0,
    ("OnnxParser", "parse_from_file"): parse,
    ("INetworkDefinition", "num_layers"): 0,
    ("ITensor", "name"): INPUT_NAME,
    ("ITensor", "is_shape_tensor"): False,
    ("Runtime", "deserialize_cuda_engine"): lambda runtime, plan: Conformant(trt.ICudaEngine),
    ("ICudaEngine", "num_io_tensors"): 2,
    ("ICudaEngine", "get_tensor_name"): lambda engine, index: (INPUT_NAME, OUTPUT_NAME)[index],
    ("ICudaEngine", "get_tensor_mode"): lambda engine, name: (
        trt.TensorIOMode.INPUT if name == INPUT_NAME else trt.TensorIOMode.OUTPUT
    ),
    ("ICudaEngine", "get_tensor_dtype"): lambda engine, name: (
        trt.DataType.UINT8 if name == INPUT_NAME else trt.DataType.FLOAT
    ),
    ("ICudaEngine", "get_tensor_shape"): lambda engine, name: (-1, 1, 28, 28) if name == INPUT_NAME else (-1, 10),
    ("ICudaEngine", "get_tensor_format"): trt.TensorFormat.LINEAR,
    ("ICudaEngine", "is_shape_inference_io"): False,
    ("ICudaEngine", "get_aliased_input_tensor"): None,
    ("IExecutionContext", "get_tensor_address"): 0,
    ("IExecutionContext", "get_tensor_shape"): (),
    ("IExecutionContext", "set_input_shape"): keep("shape"),
    ("IExecutionContext", "set_tensor_address"): address,
    ("IExecutionContext", "set_output_allocator"): keep("allocator"),
    ("IExecutionContext", "execute_async_v3"): execute,
    ("EngineInspector", "get_engine_information"): inspect,
}


def served(folder: Path) -> None:
    import torch

    from benchmarks.load.in_process import instances
    from benchmarks.load.published import check, publish
    from benchmarks.measure.candidate import Candidate, start
    from benchmarks.measure.networks import example_images

    candidate = Candidate("vitbn-tiny", "tensorrt", device="cuda")
    published = publish(candidate, folder, {"it": (1, 0)}, 64)
    images = example_images(published.config, 9)
    expected = start(published.data)(images)
    torch.cuda.Stream = torch.cuda.current_stream = lambda: SimpleNamespace(cuda_stream=7)  # the host is the device
    torch.cuda.stream, torch.Tensor.to = lambda stream: nullcontext(), lambda self, device: self
    (copy,) = instances(published, candidate, 1)
    check("for the server", copy.logits(images, 5), expected)
    run = start(published.data, candidate, (4, 9))
    check("in latency.py", run(torch.from_numpy(images)).numpy(), expected)


def rehearse(log: Path, arguments: list[str]) -> None:
    for name in ("Builder", "OnnxParser", "Runtime"):
        setattr(trt, name, constructor(getattr(trt, name)))
    if PLANTED == "another version":  # lacks a method in use
        del trt.IBuilderConfig.set_memory_pool_limit
    try:
        served(Path(arguments[1])) if arguments[0] == "served" else command(arguments)
    finally:
        log.write_text(json.dumps(USED))


def warm_up(exports: Path) -> None:
    """The children find this run's graphs in `exports`."""
    import onnxscript  # noqa: F401
    import polygraphy.backend.trt  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch

    import export.pipeline  # noqa: F401

    onnx_classifier.__defaults__ = (1,)  # as in conftest.py
    sys.path.append(str(Path(__file__).parents[1]))
    from exports_once import once

    torch.onnx.export = once(torch.onnx.export, exports)


if __name__ == "__main__":
    warm_up(Path(sys.argv[1]))
    for line in sys.stdin:
        output, log, PLANTED, *arguments = json.loads(line)
        if child := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            continue
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(Path(output, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        rehearse(Path(log), arguments)
        sys.exit()
