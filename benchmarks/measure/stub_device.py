"""A stub of a GPU, for the dry run and the tests: the host computes, the libraries' own signatures judge each call.

TensorRT: the real bindings over C libraries that do nothing; a `Conformant` replaces each object. It has exactly the
attributes of the real class and takes the arguments of the docstring's signature; a plan is the ONNX file. ONNX
Runtime: real sessions on the CPU; names of providers and of their options are checked. PyTorch: `torch.cuda` takes the
arguments of the real functions, and "cuda" means the host. So it shows which calls exist, not what a GPU does.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from models.config import INPUT_NAME, OUTPUT_NAME

# Just the symbols that TensorRT's bindings link to.
TENSORRT = "".join(
    f"void *{name}(void) {{ return 0; }}\n"
    for name in (
        *("createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL"),
        *("createNvOnnxParser_INTERNAL", "createNvOnnxParserRefitter_INTERNAL", "getNvOnnxParserVersion"),
        *("getBuilderPluginRegistry", "getPluginRegistry", "initLibNvInferPlugins"),
    )
)
# A driver with one device, of compute capability 9.0.
DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "Stub GPU", length); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return 0; }
"""
# A runtime whose device memory is the host's.
RUNTIME = """
#include <stdlib.h>
#include <string.h>
int cudaMalloc(void **pointer, size_t bytes) { *pointer = malloc(bytes); return 0; }
int cudaFree(void *pointer) { free(pointer); return 0; }
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) { memcpy(to, from, bytes); return 0; }
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    memcpy(to, from, bytes);
    return 0;
}
int cudaStreamCreate(void **stream) { *stream = malloc(1); return 0; }
int cudaStreamDestroy(void *stream) { free(stream); return 0; }
int cudaStreamSynchronize(void *stream) { return 0; }
"""
# ONNX Runtime's documentation of its execution providers, 1.31.
OF_A_STREAM = {"device_id", "has_user_compute_stream", "user_compute_stream"}
PROVIDER_OPTIONS = {
    "CPUExecutionProvider": set[str](),
    "CUDAExecutionProvider": OF_A_STREAM
    | {"gpu_mem_limit", "arena_extend_strategy", "cudnn_conv_algo_search", "do_copy_in_default_stream"}
    | {"cudnn_conv_use_max_workspace", "cudnn_conv1d_pad_to_nc1d", "enable_cuda_graph", "use_tf32", "prefer_nhwc"}
    | {"enable_skip_layer_norm_strict_mode", "use_ep_level_unified_stream", "sdpa_kernel", "fuse_conv_bias"}
    | {"tunable_op_enable", "tunable_op_tuning_enable", "tunable_op_max_tuning_duration_ms"},
    "TensorrtExecutionProvider": OF_A_STREAM
    | {f"trt_{kind}_enable" for kind in ("fp16", "bf16", "int8", "engine_cache", "timing_cache", "cuda_graph")}
    | {f"trt_profile_{bound}_shapes" for bound in ("min", "opt", "max")}
    | {"trt_max_workspace_size", "trt_engine_cache_path", "trt_timing_cache_path", "trt_builder_optimization_level"},
}

USED: list[list[Any]] = []
"""Calls of TensorRT: class, attribute, arguments as text."""
FAULT: list[str] = []
"""Planted by a test: `another type` of a layer, or a `wrong answer`."""
GRAPH: dict[str, Any] = {}
KINDS: dict[str, type] = {}
"""Classes behind the constructors."""


def make_libraries(folder: Path, major: int = 11) -> None:
    """Raises FileNotFoundError without a C compiler."""
    ours = {f"lib{name}.so.{major}": TENSORRT for name in ("nvinfer", "nvinfer_plugin", "nvonnxparser")}
    for name, code in (ours | {"libcuda.so.1": DRIVER, "libcudart.so.13": RUNTIME}).items():
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / name), f"-Wl,-soname,{name}"]
        subprocess.run(command, input=code, text=True, check=True)


def install(folder: Path, major: int = 11) -> None:
    """Puts the stubs into this process, for good. `folder`: for the C libraries; `major`: of TensorRT's bindings."""
    make_libraries(folder, major)
    for path in sorted(folder.glob("lib*")):
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)  # later found by its name
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")])
    import tensorrt_bindings

    sys.modules["tensorrt"] = tensorrt_bindings
    in_tensorrt()
    in_onnxruntime()
    in_torch()


# TensorRT


class Memory(bytes):
    """IHostMemory that Python can read."""

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Conformant:
    def __init__(self, kind: type, **state: Any) -> None:
        self.__dict__.update(kind=kind, state=state)

    @property
    def __class__(self) -> type:  # Polygraphy asks isinstance(engine, trt.ICudaEngine)
        kind: type = self.__dict__["kind"]
        return kind

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise TypeError(f"cannot become {kind}")

    def __getattr__(self, name: str) -> Any:
        kind = self.__dict__["kind"]
        member = getattr(kind, name)  # AttributeError if the real class lacks it
        if isinstance(member, property):
            USED.append([kind.__name__, name, ""])
            return self.answer(name, (), str(member.fget.__doc__).rpartition("->")[2])
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


def kind_of(annotation: str) -> Any:
    import tensorrt_bindings as trt

    ours = annotation.startswith("tensorrt_bindings")
    name = annotation.rpartition(".")[2]
    return KINDS.get(name) or getattr(trt, name, None) if ours else None


def is_a(value: Any, annotation: str) -> bool:
    kind = kind_of(annotation)
    if kind is not None and kind.__name__ in ("Dims", "IHostMemory"):
        return isinstance(value, tuple if kind.__name__ == "Dims" else Memory)
    simple = {"str": str, "bool": bool, "tuple": tuple, "bytes": bytes, "typing.SupportsInt": int}
    return isinstance(value, kind or simple.get(annotation, object))


def made(returns: str) -> Any:
    kind = kind_of(returns := returns.strip())
    if kind is not None and kind.__name__ == "IHostMemory":
        return Memory(b"timings")
    if kind and hasattr(kind, "__members__"):
        return next(iter(kind.__members__.values()))
    return Conformant(kind) if kind else {"bool": True, "int": 0}.get(returns)


def in_tensorrt() -> None:
    import tensorrt as trt

    def constructor(kind: type) -> Callable[..., Conformant]:
        def construct(*args: Any) -> Conformant:
            fits("__init__", str(kind.__init__.__doc__), (object(), *args), {})  # type: ignore[misc]
            return Conformant(kind, args=args)

        return construct

    for name in ("Builder", "OnnxParser", "OnnxParserRefitter", "Refitter", "Runtime"):
        KINDS[name] = getattr(trt, name)
        setattr(trt, name, constructor(KINDS[name]))


def parse(parser: Conformant, path: str) -> bool:
    import onnx

    GRAPH["proto"] = onnx.load(path)
    return True


def deserialize(runtime: Conformant, plan: bytes) -> Conformant:
    import onnx
    import tensorrt as trt

    return Conformant(trt.ICudaEngine, proto=onnx.load_from_string(bytes(plan)))


def refit(parser: Conformant, model: bytes) -> bool:
    import onnx

    engine = parser.__dict__["state"]["args"][0].__dict__["state"]["args"][0]
    engine.__dict__["state"]["proto"] = onnx.load_from_string(model)
    return True


def shape(engine: Conformant, name: str) -> tuple[int, ...]:
    graph = engine.__dict__["state"]["proto"].graph
    (value,) = (each for each in (*graph.input, *graph.output) if each.name == name)
    return tuple(dim.dim_value or -1 for dim in value.type.tensor_type.shape.dim)


def of_input(if_input: str, if_output: str) -> Callable[[Conformant, str], Any]:
    """Members of enumerations, such as DataType.UINT8."""

    def choose(engine: Conformant, name: str) -> Any:
        import tensorrt as trt

        kind, member = (if_input if name == INPUT_NAME else if_output).split(".")
        return getattr(getattr(trt, kind), member)

    return choose


def new_context(engine: Conformant, *strategy: Any) -> Conformant:
    import tensorrt as trt

    return Conformant(trt.IExecutionContext, proto=engine.__dict__["state"]["proto"])


def inspect_layers(inspector: Conformant, form: Any) -> str:
    """A layer per node, in the graph's types."""
    from export.engines.tensorrt_graph import ONNX_TYPES, element_types

    proto = GRAPH["proto"]
    types = {name: ONNX_TYPES.get(number, "int64") for name, number in element_types(proto).items()}
    words = {"float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "int8": "Int8", "int64": "Int64"}
    layers = [
        {
            "Name": f"__myl_{i}",
            "Metadata": f"[ONNX Layer: {node.name}]",
            "Inputs": [{"Datatype": words[types[name]], "Format": "Linear"} for name in node.input if name],
            "Outputs": [{"Datatype": words[types[name]], "Format": "Linear"} for name in node.output],
        }
        for i, node in enumerate(proto.graph.node)
    ]
    if "another type" in FAULT:
        product = next(i for i, node in enumerate(proto.graph.node) if node.op_type in ("MatMul", "Conv"))
        layers[product]["Outputs"] = [{"Datatype": "Half" if "Float" in str(layers[product]) else "Float"}]
    return json.dumps({"Layers": layers})


@lru_cache(8)
def classifier(data: bytes) -> Any:
    """ONNX Runtime has no CPU kernels for bfloat16 and products in float8."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    from export.engines.tensorrt_graph import element_types
    from export.equivalence import onnx_classifier

    proto = onnx.load_from_string(data)
    if {onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT8E4M3FN}.isdisjoint(element_types(proto).values()):
        return onnx_classifier(data)
    evaluator: Any = ReferenceEvaluator(proto)
    return lambda images: evaluator.run(None, {INPUT_NAME: images})[0]


def execute(context: Conformant, stream: int) -> bool:
    import tensorrt as trt

    state = context.__dict__["state"]
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


def keep(key: str | None = None) -> Callable[..., bool]:
    """Under `key` or, without, under the tensor's name."""

    def remember(context: Conformant, name: str, value: Any) -> bool:
        context.__dict__["state"][key or name] = value
        return True

    return remember


ANSWERS: dict[tuple[str, str], Any] = {
    ("INetworkDefinition", "num_inputs"): 1,
    ("OnnxParser", "num_errors"): 0,
    ("OnnxParser", "parse_from_file"): parse,
    ("INetworkDefinition", "num_layers"): 0,
    ("ITensor", "name"): INPUT_NAME,
    ("ITensor", "is_shape_tensor"): False,
    ("Builder", "build_serialized_network"): lambda *_: Memory(GRAPH["proto"].SerializeToString()),
    ("Runtime", "deserialize_cuda_engine"): deserialize,
    ("ICudaEngine", "num_io_tensors"): 2,
    ("ICudaEngine", "get_tensor_name"): lambda engine, index: (INPUT_NAME, OUTPUT_NAME)[index],
    ("ICudaEngine", "get_tensor_mode"): of_input("TensorIOMode.INPUT", "TensorIOMode.OUTPUT"),
    ("ICudaEngine", "get_tensor_dtype"): of_input("DataType.UINT8", "DataType.FLOAT"),
    ("ICudaEngine", "get_tensor_shape"): shape,
    ("ICudaEngine", "get_tensor_format"): of_input("TensorFormat.LINEAR", "TensorFormat.LINEAR"),
    ("ICudaEngine", "is_shape_inference_io"): False,
    ("ICudaEngine", "get_aliased_input_tensor"): None,
    ("ICudaEngine", "create_execution_context"): new_context,
    ("OnnxParserRefitter", "refit_from_bytes"): refit,
    ("Refitter", "get_missing_weights"): [],
    ("IExecutionContext", "get_tensor_address"): 0,
    ("IExecutionContext", "get_tensor_shape"): (),
    ("IExecutionContext", "set_input_shape"): keep("shape"),
    ("IExecutionContext", "set_tensor_address"): keep(),
    ("IExecutionContext", "set_output_allocator"): keep("allocator"),
    ("IExecutionContext", "execute_async_v3"): execute,
    ("EngineInspector", "get_engine_information"): inspect_layers,
}


# ONNX Runtime


class Session:
    """A session on the host that takes the addresses of "cuda"."""

    def __init__(self, session: Any, providers: list[str]) -> None:
        self.session, self.providers = session, providers

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def get_providers(self) -> list[str]:
        return [*self.providers, "CPUExecutionProvider"]

    def io_binding(self) -> Any:
        binding = self.session.io_binding()
        for name in ("bind_input", "bind_output"):
            bind = getattr(binding, name)

            def on_host(tensor: str, device: str, *rest: Any, bind: Any = bind) -> None:
                bind(tensor, "cpu" if device == "cuda" else device, *rest)

            setattr(binding, name, on_host)
        return binding


def in_onnxruntime() -> None:
    import onnxruntime

    real = onnxruntime.InferenceSession

    def session(data: Any, sess_options: Any = None, providers: Any = ()) -> Any:
        asked: dict[str, Any] = dict(each if isinstance(each, tuple) else (each, {}) for each in providers)
        for name, own in asked.items():
            if name not in onnxruntime.get_all_providers():
                raise ValueError(f"ONNX Runtime: expected a provider, found {name}")
            if unknown := own.keys() - PROVIDER_OPTIONS[name]:
                raise ValueError(f"ONNX Runtime: {name} has no option {', '.join(sorted(unknown))}")
            if not all(isinstance(value, str) for value in own.values()):
                raise ValueError(f"ONNX Runtime: expected text as options of {name}, found {own}")
        made = real(data, sess_options, providers=["CPUExecutionProvider"])
        on_a_gpu = [name for name in asked if name != "CPUExecutionProvider"]
        return Session(made, on_a_gpu) if on_a_gpu else made

    onnxruntime.InferenceSession = session
    onnxruntime.get_available_providers = lambda: list(PROVIDER_OPTIONS)
    onnxruntime.preload_dlls = checked(onnxruntime.preload_dlls)


# PyTorch


def checked(real: Any, result: Any = None) -> Callable[..., Any]:
    """Takes the arguments of `real` alone. `result`: a value, or a function of the arguments."""
    signature = inspect.signature(real)

    def stub(*args: Any, **kwargs: Any) -> Any:
        signature.bind(*args, **kwargs)
        return result(*args, **kwargs) if callable(result) else result

    return stub


class Like:
    """Has the methods of `kind` and takes their arguments; does nothing. `known`: fields of the C++ class below it."""

    def __init__(self, kind: type, **known: Any) -> None:
        self.kind, self.known = kind, known

    def __getattr__(self, name: str) -> Any:
        if name in self.known:
            return self.known[name]
        method = getattr(self.kind, name)
        return lambda *args, **kwargs: checked(method)(self, *args, **kwargs)


def on_host(real: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def host(value: Any) -> Any:
        is_cuda = (
            value == "cuda" if isinstance(value, str) else isinstance(value, torch.device) and value.type == "cuda"
        )
        return torch.device("cpu") if is_cuda else value

    def stub(*args: Any, **kwargs: Any) -> Any:
        return real(*map(host, args), **{name: host(value) for name, value in kwargs.items()})

    return stub


def in_torch() -> None:
    import torch

    cuda: Any = torch.cuda
    graph: Any = cuda.CUDAGraph
    is_available = cuda.is_available
    stream = Like(cuda.Stream, cuda_stream=7)
    event = Like(cuda.Event, elapsed_time=checked(lambda end: None, 1.0))
    objects = {
        "Stream": stream,
        "current_stream": stream,
        "Event": event,
        "CUDAGraph": lambda *_: Like(graph),
        "stream": lambda *_: nullcontext(),
        "graph": lambda *_, **__: nullcontext(),
        "get_device_properties": SimpleNamespace(uuid="stub", name="Stub GPU"),
        "get_device_name": "Stub GPU",
        "is_available": True,
        **dict.fromkeys(("memory_allocated", "max_memory_allocated"), 0),
        **dict.fromkeys(("set_stream", "synchronize", "reset_peak_memory_stats", "empty_cache", "_sleep")),
    }
    for name, result in objects.items():
        answer = result if inspect.isfunction(result) else (lambda *_, result=result, **__: result)
        setattr(cuda, name, checked(getattr(cuda, name), answer))
    torch.compile = checked(torch.compile, lambda network, **_: network)
    patched: Any = torch
    export, real = torch.onnx.export, (torch.Tensor.to, is_available)
    stubs = on_host(torch.Tensor.to), cuda.is_available

    def use(functions: tuple[Any, Any]) -> None:
        patched.Tensor.to, cuda.is_available = functions

    def exported(*args: Any, **kwargs: Any) -> Any:
        use(real)  # the exporter asks for the device itself
        try:
            return export(*args, **kwargs)
        finally:
            use(stubs)

    use(stubs)
    patched.onnx.export, patched.Tensor.pin_memory = exported, torch.Tensor.clone
    patched.nn.Module.to, patched.ones = on_host(torch.nn.Module.to), on_host(torch.ones)
