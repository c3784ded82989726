"""ONNX -> a TensorRT engine, through Polygraphy: built, read back, compared with ONNX Runtime, described.

In: an ONNX source in the precision of the engine, which is strongly typed (TensorRT 11 knows no other). Out: the plan
with its manifest and the proof; an error if the engine does not answer as the ONNX file does.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

from export.engines.gpu import Gpu
from export.engines.onnx_source import OnnxSource
from export.engines.tensorrt_layers import check_layers
from export.engines.tensorrt_support import prepare
from export.equivalence import BATCH_SIZES, Classifier, Images, Proof, onnx_classifier, proof_images, prove
from export.errors import ExportError
from export.publishing.artifact import PLAN_FILE, Artifact
from models.config import INPUT_NAME, OUTPUT_NAME, ModelConfig

# Absolute. In float16, kernels that sum in another order differ by at most 0.005 on the shipped models, as much as
# either differs from float32; their logits on these digits reach 6. Ten times that leaves room for larger logits.
TOLERANCES = {"fp32": 1e-4, "fp16": 0.05}
REFERENCE_BATCH = 256


class EngineError(ExportError):
    """An engine that TensorRT did not build or load."""


@dataclass(frozen=True)
class EngineOptions:
    """Precision, batch sizes of the single optimisation profile, and portability."""

    precision: Literal["fp32", "fp16"]
    min_batch: int = 1
    opt_batch: int = 64
    max_batch: int = 5000
    timing_cache: Path | None = None
    version_compatible: bool = False
    hardware_compatible: bool = False
    workspace_mib: int | None = None

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes of the profile, ascending, without repeats."""
        return tuple(sorted({self.min_batch, self.opt_batch, self.max_batch}))


@dataclass(frozen=True)
class Built:
    """A proven engine; `layer_types` counts the product layers by type."""

    artifact: Artifact
    proof: Proof
    layer_types: dict[str, int]


def make(source: OnnxSource, options: EngineOptions, gpu: Gpu) -> Built:
    """Builds the engine of `source`, reads it back and compares it.

    Raises UnsupportedGraph, EngineError, LayerTypesDiffer or EquivalenceError.
    """
    proto, config = prepare(onnx.load_from_string(source.data)), source.config
    start_ns = time.perf_counter_ns()
    plan = build(proto, config, options)
    build_s = (time.perf_counter_ns() - start_ns) / 1e9
    with load(plan) as engine:
        layer_types = check_layers(inspect(engine, config, options), proto, options.precision)
        with engine_classifier(engine) as found:
            images = proof_images(config)
            proof = compare(onnx_classifier(source.data), found, images, options)
            sample = found(np.repeat(images[:1], options.min_batch, axis=0))[0].tolist()
    engine_facts = describe(source, options, gpu) | {
        "build_s": round(build_s, 3),
        "layer_types": layer_types,
        "max_abs_error": proof.max_abs_error,
        "tolerance": proof.tolerance,
    }
    manifest = source.manifest | {"sample_logits": sample, "engine": engine_facts}
    return Built(Artifact(config, manifest, PLAN_FILE, plan), proof, layer_types)


def build(proto: onnx.ModelProto, config: ModelConfig, options: EngineOptions) -> bytes:
    """The serialised engine of `proto`; raises EngineError."""
    import tensorrt as trt
    from polygraphy.backend.trt import CreateConfig, Profile, engine_bytes_from_network, network_from_onnx_path

    shapes = [(size, *config.input_shape) for size in (options.min_batch, options.opt_batch, options.max_batch)]
    cache, mib, level = options.timing_cache, options.workspace_mib, trt.HardwareCompatibilityLevel
    if cache:
        cache.parent.mkdir(parents=True, exist_ok=True)  # Polygraphy locks it before it looks
    with tempfile.TemporaryDirectory() as folder, _engine_errors():
        create_config = CreateConfig(  # TF32 is off by default
            profiles=[Profile().add(INPUT_NAME, *shapes)],
            load_timing_cache=str(cache) if cache and cache.is_file() else None,
            profiling_verbosity=trt.ProfilingVerbosity.DETAILED,  # else the inspector tells only names
            memory_pool_limits={trt.MemoryPoolType.WORKSPACE: mib << 20} if mib else None,
            version_compatible=options.version_compatible,
            hardware_compatibility_level=level.AMPERE_PLUS if options.hardware_compatible else level.NONE,
        )
        path = Path(folder, "model.onnx")
        path.write_bytes(proto.SerializeToString())
        network = network_from_onnx_path(str(path), strongly_typed=True)
        save = str(cache) if cache else None
        return bytes(engine_bytes_from_network(network, config=create_config, save_timing_cache=save))


@contextmanager
def load(plan: bytes) -> Iterator[Any]:
    """The engine in `plan`, a tensorrt.ICudaEngine. Raises EngineError, also for a failure while it is in use."""
    from polygraphy.backend.trt import engine_from_bytes

    with _engine_errors():
        yield engine_from_bytes(plan)


def inspect(engine: Any, config: ModelConfig, options: EngineOptions) -> str:
    """TensorRT's report on every layer, as JSON, at the optimal batch size."""
    import tensorrt as trt

    context = engine.create_execution_context()
    context.set_input_shape(INPUT_NAME, (options.opt_batch, *config.input_shape))
    inspector = engine.create_engine_inspector()
    inspector.execution_context = context  # with a dynamic batch most types are known only in a context with a shape
    return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


@contextmanager
def engine_classifier(engine: Any) -> Iterator[Classifier]:
    """The engine as a function of numpy arrays, valid while the context lasts."""
    from polygraphy.backend.trt import TrtRunner

    with TrtRunner(engine) as runner:
        # The runner reuses its output memory.
        yield lambda images: np.array(runner.infer({INPUT_NAME: np.ascontiguousarray(images)})[OUTPUT_NAME])


def compare(expected: Classifier, found: Classifier, images: Images, options: EngineOptions) -> Proof:
    """Compares `found` with `expected` at the batch sizes of the profile and at those of BATCH_SIZES that it covers.

    Repeats `images` to fill the largest batch. In float16, leaves out images whose two best logits are too close:
    rounding alone could swap them. Raises a subclass of EquivalenceError.
    """
    tolerance = TOLERANCES[options.precision]
    if options.precision == "fp16":
        best = np.sort(expected(images), axis=1)
        images = images[best[:, -1] - best[:, -2] > 2 * tolerance]
    sizes = {size for size in BATCH_SIZES if options.min_batch <= size <= options.max_batch} | {*options.batches}
    repeated = np.resize(images, (max(sizes) if len(images) else 0, *images.shape[1:]))
    stages = f"TensorRT, {options.precision}"
    return prove(stages, _in_parts(expected), found, repeated, tolerance, sorted(sizes))


def describe(source: OnnxSource, options: EngineOptions, gpu: Gpu) -> dict[str, Any]:
    """Facts about engine and machine; an engine loads only on that TensorRT version and architecture."""
    import polygraphy
    import tensorrt as trt

    return {
        "tensorrt": trt.__version__,
        "polygraphy": polygraphy.__version__,
        "gpu": gpu.name,
        "compute_capability": gpu.compute_capability,
        "precision": options.precision,
        "profile": {"min": options.min_batch, "opt": options.opt_batch, "max": options.max_batch},
        "version_compatible": options.version_compatible,
        "hardware_compatible": options.hardware_compatible,
        "workspace_mib": options.workspace_mib,
        "onnx_sha256": source.sha256,
    }


def _in_parts(classify: Classifier) -> Classifier:
    """`classify` in batches that fit into memory; answers do not depend on the batch."""

    def in_parts(images: Images) -> Any:
        parts = [classify(images[i : i + REFERENCE_BATCH]) for i in range(0, len(images), REFERENCE_BATCH)]
        return np.concatenate(parts)

    return in_parts


@contextmanager
def _engine_errors() -> Iterator[None]:
    """TensorRT's log goes to standard error, its first line into an EngineError."""
    from polygraphy.exception import PolygraphyException
    from polygraphy.logger import G_LOGGER

    try:
        with G_LOGGER.verbosity(G_LOGGER.ERROR):
            yield
    except PolygraphyException as error:
        raise EngineError(f"TensorRT: {next(iter(str(error).splitlines()), 'no reason given')}") from error
