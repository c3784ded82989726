"""TensorRT's real bindings over a library that does nothing: the host computes, their docstrings judge each call.

A `Conformant` stands for each object. It has exactly the attributes of the real class and takes the arguments of the
docstring's signature; a plan is the ONNX file.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import shape_inference

from models.networks.config import INPUT_NAME, OUTPUT_NAME

USED: list[list[Any]] = []
"""Calls: class, attribute, arguments as text."""
FAULT: list[str] = []
"""Planted: `another type` of a layer, a `wrong answer`, or ONNX Runtime with `no provider` for a GPU."""
ANSWERS: dict[tuple[str, str], Any] = {}
"""By class and attribute a value, or a function of the object and the arguments; else the return type decides."""
CONSTRUCTED = ("Builder", "OnnxParser", "Runtime")
KINDS: dict[str, type] = {}
"""The real classes of these names; in the module, functions replace them."""
WORDS: dict[int, str] = {onnx.TensorProto.FLOAT: "Float", onnx.TensorProto.FLOAT16: "Half"}


class Memory(bytes):
    """IHostMemory that Python can read."""

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Conformant:
    kind: type
    state: dict[str, Any]

    def __init__(self, kind: type, **state: Any) -> None:
        self.__dict__.update(kind=kind, state=state)

    @property
    def __class__(self) -> type:  # Polygraphy asks isinstance(engine, trt.ICudaEngine)
        return self.kind

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise TypeError(f"cannot become {kind}")

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.kind, name)  # AttributeError if the real class lacks it
        if isinstance(member, property):
            return self.answer(name, str(member.fget.__doc__).rpartition("->")[2])
        return lambda *args, **named: self.answer(
            name, fits(name, str(member.__doc__), (self, *args), named), *args, *named.values()
        )

    def __setattr__(self, name: str, value: Any) -> None:
        USED.append([self.kind.__name__, name, str(value)])
        getattr(self.kind, name).fset.__doc__  # noqa: B018 - AttributeError where the real one cannot be set
        self.state[name] = value

    def __iter__(self) -> Iterator[Any]:
        if not (hasattr(self.kind, "__getitem__") and hasattr(self.kind, "__len__")):
            raise TypeError(f"{self.kind} cannot be iterated over")
        return iter(())

    def answer(self, name: str, returns: str, *args: Any) -> Any:
        USED.append([self.kind.__name__, name, ", ".join(map(str, args))])
        if (self.kind.__name__, name) in ANSWERS:
            value = ANSWERS[self.kind.__name__, name]
            return value(self, *args) if callable(value) else value
        return self.state[name] if name in self.state else made(returns.strip())


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


def kind_of(annotation: str) -> Any:
    import tensorrt_bindings as trt

    ours, name = annotation.startswith("tensorrt_bindings"), annotation.rpartition(".")[2]
    return KINDS.get(name) or getattr(trt, name, None) if ours else None


def is_a(value: Any, annotation: str) -> bool:
    kind = kind_of(annotation)
    if kind is not None and kind.__name__ in ("Dims", "IHostMemory"):
        return isinstance(value, tuple if kind.__name__ == "Dims" else Memory)
    simple = {"str": str, "bool": bool, "tuple": tuple, "bytes": bytes, "typing.SupportsInt": int}
    return isinstance(value, kind or simple.get(annotation, object))


def made(returns: str) -> Any:
    kind = kind_of(returns)
    if kind is not None and kind.__name__ == "IHostMemory":
        return Memory(b"timings")
    if kind and hasattr(kind, "__members__"):
        return next(iter(kind.__members__.values()))
    return Conformant(kind) if kind else {"bool": True, "int": 0}.get(returns)


def constructor(kind: type) -> Callable[..., Conformant]:
    def construct(*args: Any) -> Conformant:
        fits("__init__", str(kind.__init__.__doc__), (object(), *args), {})  # type: ignore[misc]
        return Conformant(kind, args=args)

    return construct


def in_tensorrt() -> None:
    import tensorrt as trt

    for name in CONSTRUCTED:
        KINDS[name] = getattr(trt, name)
        setattr(trt, name, constructor(KINDS[name]))
    parsed: list[onnx.ModelProto] = []

    def parse(parser: Conformant, data: bytes) -> bool:
        parsed[:] = [onnx.load_from_string(data)]
        return True

    def shape(engine: Conformant, name: str) -> tuple[int, ...]:
        graph = engine.state["proto"].graph
        (value,) = (each for each in (*graph.input, *graph.output) if each.name == name)
        return tuple(dim.dim_value or -1 for dim in value.type.tensor_type.shape.dim)

    def keep(context: Conformant, name: str, value: Any) -> bool:
        context.state[name] = value
        return True

    def of_tensor(if_input: Any, if_output: Any) -> Callable[[Conformant, str], Any]:
        return lambda engine, name: if_input if name == INPUT_NAME else if_output

    ANSWERS.update(
        {
            ("INetworkDefinition", "num_inputs"): 1,
            ("INetworkDefinition", "num_layers"): 0,
            ("ITensor", "name"): INPUT_NAME,
            ("ITensor", "is_shape_tensor"): False,
            ("OnnxParser", "num_errors"): 0,
            ("OnnxParser", "parse"): parse,
            ("Builder", "build_serialized_network"): lambda *_: Memory(parsed[-1].SerializeToString()),
            ("Runtime", "deserialize_cuda_engine"): lambda runtime, plan: Conformant(
                trt.ICudaEngine, proto=onnx.load_from_string(bytes(plan))
            ),
            ("ICudaEngine", "num_io_tensors"): 2,
            ("ICudaEngine", "get_tensor_name"): lambda engine, index: (INPUT_NAME, OUTPUT_NAME)[index],
            ("ICudaEngine", "get_tensor_mode"): of_tensor(trt.TensorIOMode.INPUT, trt.TensorIOMode.OUTPUT),
            ("ICudaEngine", "get_tensor_dtype"): of_tensor(trt.DataType.UINT8, trt.DataType.FLOAT),
            ("ICudaEngine", "get_tensor_shape"): shape,
            ("ICudaEngine", "get_tensor_format"): trt.TensorFormat.LINEAR,
            ("ICudaEngine", "is_shape_inference_io"): False,
            ("ICudaEngine", "get_aliased_input_tensor"): None,
            ("ICudaEngine", "create_execution_context"): lambda engine, *_: Conformant(
                trt.IExecutionContext, proto=engine.state["proto"]
            ),
            ("EngineInspector", "get_engine_information"): lambda *_: layers(parsed[-1]),
            ("IExecutionContext", "get_tensor_address"): 0,
            ("IExecutionContext", "get_tensor_shape"): (),
            ("IExecutionContext", "set_input_shape"): lambda context, name, value: keep(context, "shape", value),
            ("IExecutionContext", "set_tensor_address"): keep,
            ("IExecutionContext", "set_output_allocator"): lambda context, name, it: keep(context, "allocator", it),
            ("IExecutionContext", "execute_async_v3"): execute,
        }
    )


def element_types(proto: onnx.ModelProto) -> dict[str, int]:
    """Tensor name -> element type for the whole graph; 0 where inference fails."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]  # the conversion to float16 leaves stale types
    graph = shape_inference.infer_shapes(bare).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input, *graph.output)}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}


def layers(proto: onnx.ModelProto) -> str:
    """The inspector's JSON: a layer per node, in the graph's types."""
    types = {name: WORDS.get(number, "Int64") for name, number in element_types(proto).items()}
    told = [
        {"Name": f"__myl_{i}", "Inputs": [], "Outputs": [{"Datatype": types[name]} for name in node.output]}
        for i, node in enumerate(proto.graph.node)
    ]
    if "another type" in FAULT:
        told[-1]["Outputs"] = [{"Datatype": "BFloat16"}]
    return json.dumps({"Layers": told})


def execute(context: Conformant, stream: int) -> bool:
    import tensorrt as trt

    state = context.state
    images = np.ctypeslib.as_array((ctypes.c_uint8 * int(np.prod(state["shape"]))).from_address(state[INPUT_NAME]))
    logits = classifier(state["proto"].SerializeToString())(images.reshape(state["shape"])).copy()
    if "wrong answer" in FAULT:
        logits[0, 0] += 1
    if OUTPUT_NAME in state:  # a fixed address, as the benchmarks'
        ctypes.memmove(state[OUTPUT_NAME], logits.ctypes.data, logits.nbytes)
        return True
    target = state["allocator"].reallocate_output_async(OUTPUT_NAME, 0, logits.nbytes, 256, stream)
    ctypes.memmove(target, logits.ctypes.data, logits.nbytes)
    state["allocator"].notify_shape(OUTPUT_NAME, trt.Dims(logits.shape))
    return True


@lru_cache(8)
def classifier(data: bytes) -> Any:
    """ONNX Runtime has no CPU kernels for bfloat16."""
    from onnx.reference import ReferenceEvaluator

    from export.equivalence import onnx_classifier

    proto = onnx.load_from_string(data)
    if onnx.TensorProto.BFLOAT16 not in element_types(proto).values():
        return onnx_classifier(data)
    evaluator: Any = ReferenceEvaluator(proto)
    return lambda images: evaluator.run(None, {INPUT_NAME: images})[0]
