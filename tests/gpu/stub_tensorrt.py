"""TensorRT's real bindings over a library that does nothing: the host computes, and docstrings check the calls.

A `Conformant` stands for an object of TensorRT. It has the attributes of the real class, and takes the arguments that
the docstring's signature states. A plan is the ONNX file.
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
"""All calls: class, attribute, arguments as text."""
FAULT: list[str] = []
"""Faults to plant: `another type` of a layer, a `wrong answer`, or ONNX Runtime with `no provider` for a GPU."""
ANSWERS: dict[tuple[str, str], Any] = {}
"""(class, attribute) -> a value, or a function of the object and the arguments. For others the return type decides."""
CONSTRUCTED = ("Builder", "OnnxParser", "Runtime")
KINDS: dict[str, type] = {}
"""Name -> real class, for the classes that functions replace in the module."""
WORDS: dict[int, str] = {onnx.TensorProto.FLOAT: "Float", onnx.TensorProto.FLOAT16: "Half"}


class Memory(bytes):
    """TensorRT's IHostMemory, with bytes that Python can read."""

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Conformant:
    """Stands for an object of the class `kind`. `state`: the values of its attributes."""

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
        getattr(self.kind, name).fset.__doc__  # noqa: B018 - AttributeError if the real attribute cannot be set
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
        return self.state[name] if name in self.state else value_of(returns.strip())


def fits(name: str, doc: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The return type of the docstring's first signature that takes the arguments. Raises TypeError without it."""
    for parameters, returns in re.findall(rf"^(?:\d+\. )?{name}\((.*)\) -> (.*)$", doc, re.MULTILINE):
        known = dict(re.findall(r"(\w+): ([\w.]+)", re.sub(r"<[^>]*>", "default", parameters)))
        required = [part.split(":")[0] for part in re.split(r", (?=\w+:)", parameters) if part and " = " not in part]
        bound = dict(zip(known, args, strict=False)) | kwargs
        fit = len(bound) == len(args) + len(kwargs) and set(bound) <= set(known) and set(required) <= set(bound)
        if fit and all(key == "self" or is_a(value, known[key]) for key, value in bound.items()):
            return str(returns)
    raise TypeError(f"{name}{args}{kwargs} fits none of {doc.splitlines()}")


def kind_of(annotation: str) -> Any:
    """TensorRT's class that an annotation names; None for another type."""
    import tensorrt_bindings as trt

    of_tensorrt, name = annotation.startswith("tensorrt_bindings"), annotation.rpartition(".")[2]
    return KINDS.get(name) or getattr(trt, name, None) if of_tensorrt else None


def is_a(value: Any, annotation: str) -> bool:
    kind = kind_of(annotation)
    if kind is not None and kind.__name__ in ("Dims", "IHostMemory"):
        return isinstance(value, tuple if kind.__name__ == "Dims" else Memory)
    simple = {"str": str, "bool": bool, "tuple": tuple, "bytes": bytes, "typing.SupportsInt": int}
    return isinstance(value, kind or simple.get(annotation, object))


def value_of(returns: str) -> Any:
    """A value of the type that an annotation names."""
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
        (value,) = (tensor for tensor in (*graph.input, *graph.output) if tensor.name == name)
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
            ("IExecutionContext", "set_output_allocator"): lambda context, name, allocator: keep(
                context, "allocator", allocator
            ),
            ("IExecutionContext", "execute_async_v3"): execute,
        }
    )


def element_types(proto: onnx.ModelProto) -> dict[str, int]:
    """Name of a tensor -> its element type, for all tensors of the graph; 0 where inference fails."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]  # the conversion to float16 leaves stale types
    graph = shape_inference.infer_shapes(bare).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input, *graph.output)}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}


def layers(proto: onnx.ModelProto) -> str:
    """The inspector's JSON: a layer for each node, with the types of the graph."""
    types = {name: WORDS.get(number, "Int64") for name, number in element_types(proto).items()}
    layers = [
        {"Name": f"__myl_{i}", "Inputs": [], "Outputs": [{"Datatype": types[name]} for name in node.output]}
        for i, node in enumerate(proto.graph.node)
    ]
    if "another type" in FAULT:
        layers[-1]["Outputs"] = [{"Datatype": "BFloat16"}]
    return json.dumps({"Layers": layers})


def execute(context: Conformant, stream: int) -> bool:
    """Classifies the images at the input's address, and writes logits to the output's address or allocator."""
    import tensorrt as trt

    state = context.state
    images = np.ctypeslib.as_array((ctypes.c_uint8 * int(np.prod(state["shape"]))).from_address(state[INPUT_NAME]))
    logits = classifier(state["proto"].SerializeToString())(images.reshape(state["shape"])).copy()
    if "wrong answer" in FAULT:
        logits[0, 0] += 1
    if OUTPUT_NAME in state:  # the benchmarks set an address
        ctypes.memmove(state[OUTPUT_NAME], logits.ctypes.data, logits.nbytes)
        return True
    target = state["allocator"].reallocate_output_async(OUTPUT_NAME, 0, logits.nbytes, 256, stream)
    ctypes.memmove(target, logits.ctypes.data, logits.nbytes)
    state["allocator"].notify_shape(OUTPUT_NAME, trt.Dims(logits.shape))
    return True


@lru_cache(8)
def classifier(data: bytes) -> Any:
    """A function from images to logits. ONNX's evaluator runs bfloat16, for which ONNX Runtime has no CPU kernels."""
    from onnx.reference import ReferenceEvaluator

    from export.compare_logits import onnx_classifier

    proto = onnx.load_from_string(data)
    if onnx.TensorProto.BFLOAT16 not in element_types(proto).values():
        return onnx_classifier(data)
    evaluator: Any = ReferenceEvaluator(proto)
    return lambda images: evaluator.run(None, {INPUT_NAME: images})[0]
