"""Stand-ins for libraries of GPU machines.

TensorRT's have only the symbols that its Python bindings link to. CUDA's: a driver with one device, and a runtime whose
device memory is the host's.
"""

import os
import subprocess
import sys
from pathlib import Path

BINDINGS_10 = Path(__file__).parents[2] / ".tensorrt"  # the oldest supported TensorRT: make bindings

TENSORRT = """
void *createInferBuilder_INTERNAL(void) { return 0; }
void *createInferRefitter_INTERNAL(void) { return 0; }
void *createInferRuntime_INTERNAL(void) { return 0; }
void *createNvOnnxParser_INTERNAL(void) { return 0; }
void *createNvOnnxParserRefitter_INTERNAL(void) { return 0; }
int getNvOnnxParserVersion(void) { return 0; }
void *getBuilderPluginRegistry(void) { return 0; }
void *getPluginRegistry(void) { return 0; }
int initLibNvInferPlugins(void) { return 1; }
"""
DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "Stub GPU", length); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return 0; }
"""
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
FRONTEND = "from tensorrt_bindings import *\nfrom tensorrt_bindings import __version__\n"

LIBRARIES = {"libcuda.so.1": DRIVER, "libcudart.so.13": RUNTIME}


def environment(folder: Path, *left_out: str, major: int = 11) -> dict[str, str]:
    """Builds them in `folder`; returns an environment where Python finds them and a package `tensorrt`.

    `major`: 11, from this environment, or 10, from `BINDINGS_10`.
    """
    ours = {f"lib{name}.so.{major}": TENSORRT for name in ("nvinfer", "nvinfer_plugin", "nvonnxparser")}
    for name, code in (ours | LIBRARIES).items():
        if name not in left_out:
            command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", folder / name, f"-Wl,-soname,{name}"]
            subprocess.run(command, input=code, text=True, check=True)
    package = folder / "packages" / "tensorrt"
    if "tensorrt" not in left_out:
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(FRONTEND)
    packages = os.pathsep.join([str(package.parent), *([str(BINDINGS_10)] if major == 10 else [])])
    return os.environ | {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": packages, "OMP_NUM_THREADS": "1"}


def python(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
