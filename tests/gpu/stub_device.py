"""A stub of a GPU, for the dry run and the tests: the host computes, and calls are checked against the real signatures.

TensorRT: see stub_tensorrt.py. ONNX Runtime: real sessions on the CPU, which check the names of providers and of their
options. PyTorch: `torch.cuda` takes the arguments of the real functions, and "cuda" means the host. The stub shows that
calls are valid, not what a GPU does.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stub_tensorrt import FAULT, USED, in_tensorrt

# The symbols that TensorRT's bindings link to.
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
# Options that the libraries of onnxruntime-gpu 1.31.1 name.
OF_A_STREAM = {"device_id", "has_user_compute_stream", "user_compute_stream"}
PROVIDER_OPTIONS = {
    "CPUExecutionProvider": set[str](),
    "CUDAExecutionProvider": OF_A_STREAM
    | {"gpu_mem_limit", "arena_extend_strategy", "cudnn_conv_algo_search", "do_copy_in_default_stream"}
    | {"cudnn_conv_use_max_workspace", "cudnn_conv1d_pad_to_nc1d", "enable_cuda_graph", "use_tf32", "prefer_nhwc"}
    | {"enable_skip_layer_norm_strict_mode", "use_ep_level_unified_stream", "sdpa_kernel", "fuse_conv_bias"}
    | {"tunable_op_enable", "tunable_op_tuning_enable", "tunable_op_max_tuning_duration_ms"},
}


def make_libraries(folder: Path, major: int = 11) -> None:
    """Compiles the C stubs. Raises FileNotFoundError without a C compiler."""
    tensorrt = {f"lib{name}.so.{major}": TENSORRT for name in ("nvinfer", "nvinfer_plugin", "nvonnxparser")}
    for name, code in (tensorrt | {"libcuda.so.1": DRIVER, "libcudart.so.13": RUNTIME}).items():
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / name), f"-Wl,-soname,{name}"]
        subprocess.run(command, input=code, text=True, check=True)


def install(folder: Path, major: int = 11) -> None:
    """Puts the stubs into this process; they cannot be removed.

    `folder`: for the C libraries. `major`: the major version of TensorRT's bindings.
    """
    make_libraries(folder, major)
    for path in sorted(folder.glob("lib*")):
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)  # later loads by its name get this library
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")])
    import tensorrt_bindings

    sys.modules["tensorrt"] = tensorrt_bindings
    in_tensorrt()
    in_onnxruntime()
    in_torch()


# ONNX Runtime


class Session:
    """A session on the host that accepts tensors of the device "cuda"."""

    def __init__(self, session: Any, providers: list[str]) -> None:
        self.session, self.providers = session, providers

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def get_providers(self) -> list[str]:
        return [*([] if "no provider" in FAULT else self.providers), "CPUExecutionProvider"]

    def io_binding(self) -> Any:
        binding = self.session.io_binding()
        for name in ("bind_input", "bind_output"):
            bind = getattr(binding, name)

            def on_host(tensor: str, device: str, *arguments: Any, bind: Any = bind) -> None:
                bind(tensor, "cpu" if device == "cuda" else device, *arguments)

            setattr(binding, name, on_host)
        return binding


def in_onnxruntime() -> None:
    import onnxruntime

    real = onnxruntime.InferenceSession

    def session(data: Any, sess_options: Any = None, providers: Any = (), **others: Any) -> Any:
        pairs = (provider if isinstance(provider, tuple) else (provider, {}) for provider in providers)
        options_of: dict[str, Any] = dict(pairs)
        for name, options in options_of.items():
            if name not in onnxruntime.get_all_providers():
                raise ValueError(f"ONNX Runtime: expected a provider, found {name}")
            if unknown := options.keys() - PROVIDER_OPTIONS[name]:
                raise ValueError(f"ONNX Runtime: {name} has no option {', '.join(sorted(unknown))}")
            if not all(isinstance(value, str) for value in options.values()):
                raise ValueError(f"ONNX Runtime: expected text as options of {name}, found {options}")
            USED.append([name, "options", options])
        on_host = real(data, sess_options, providers=["CPUExecutionProvider"], **others)
        of_a_gpu = [name for name in options_of if name != "CPUExecutionProvider"]
        return Session(on_host, of_a_gpu) if of_a_gpu else on_host

    class InferenceSession(real):  # a class: annotations name it
        def __new__(cls, *arguments: Any, **named: Any) -> Any:
            return session(*arguments, **named)

    onnxruntime.InferenceSession = InferenceSession
    onnxruntime.get_available_providers = lambda: list(PROVIDER_OPTIONS)
    onnxruntime.preload_dlls = checked(
        onnxruntime.preload_dlls, lambda *_, **__: USED.append(["onnxruntime", "preload_dlls", ""])
    )


# PyTorch


def checked(real: Any, result: Any = None) -> Callable[..., Any]:
    """A stub of the function `real`: refuses other arguments and returns `result`, a value or a function of them."""
    signature = inspect.signature(real)

    def stub(*args: Any, **kwargs: Any) -> Any:
        signature.bind(*args, **kwargs)
        return result(*args, **kwargs) if callable(result) else result

    return stub


class Like:
    """An object with the methods of `kind`, which check their arguments and do nothing.

    `fields`: those that the C++ class below `kind` defines.
    """

    def __init__(self, kind: type, **fields: Any) -> None:
        self.kind, self.fields = kind, fields

    def __getattr__(self, name: str) -> Any:
        if name in self.fields:
            return self.fields[name]
        method = getattr(self.kind, name)
        return lambda *args, **kwargs: checked(method)(self, *args, **kwargs)


def on_host(real: Callable[..., Any]) -> Callable[..., Any]:
    """The function `real` with "cpu" in place of "cuda" in its arguments."""
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
        use(real)  # the exporter must see the host as it is
        try:
            return export(*args, **kwargs)
        finally:
            use(stubs)

    use(stubs)
    patched.onnx.export, patched.Tensor.pin_memory = exported, torch.Tensor.clone
    patched.nn.Module.to, patched.ones = on_host(torch.nn.Module.to), on_host(torch.ones)
