"""Builds a TensorRT engine from an ONNX file, through Polygraphy, and compares it with ONNX Runtime.

In: an ONNX artifact whose types are those of the engine: the network is strongly typed, as TensorRT 11 demands.
Out: the plan as an artifact, the comparison, and how many layers compute in which types; or EngineError.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import shape_inference

from common.repository import ONNX_FILE, PLAN_FILE
from common.sample import Sample
from export.compare_logits import BATCH_SIZES, Classifier, Comparison, Images, compare, in_parts, onnx_classifier
from export.engines.gpu import Gpu
from export.errors import ExportError
from export.precision import Accuracies, engine_accuracy
from export.precision_table import PRECISIONS, Precision
from export.publishing.artifact import Artifact, classifier_artifact
from export.publishing.manifest import Plan, Profile
from export.sample_images import embedded_sample
from models.data import Dataset
from models.networks.config import INPUT_NAME, OUTPUT_NAME, ModelConfig

REFERENCE_BATCH = 256
ACCURACY_DROP = 0.1  # percentage points
# What TensorRT's inspector calls the types: "Half" in version 11, "Row major linear FP16 format" in version 10.
WORDS = {"Half": "float16", "FP16": "float16", "Float": "float32", "FP32": "float32", "TF32": "tfloat32"}
WORDS |= {"BFloat16": "bfloat16", "BF16": "bfloat16", "Int8": "int8"}


class EngineError(ExportError):
    """TensorRT refuses the graph, or the engine computes in other types than asked for."""


@dataclass(frozen=True)
class EngineOptions:
    """Of a build: batch sizes in images, `workspace_mib` in MiB (None: no limit).

    `fixed`: batch sizes with a profile of their own, in place of the range; the engine takes no other size.
    """

    precision: Precision
    min_batch: int = 1
    opt_batch: int = 64
    max_batch: int = 5000
    timing_cache: Path | None = None
    version_compatible: bool = False
    hardware_compatible: bool = False
    workspace_mib: int | None = None
    fixed: tuple[int, ...] = ()

    @property
    def profiles(self) -> list[tuple[int, int, int]]:
        """(minimum, optimum, maximum) of the batch size in each profile."""
        return [(size, size, size) for size in self.fixed] or [(self.min_batch, self.opt_batch, self.max_batch)]


@dataclass(frozen=True)
class Built:
    """An engine and its checks. `accuracy`: None without a dataset."""

    artifact: Artifact
    engine: Plan
    comparison: Comparison
    accuracy: Accuracies | None = None


def build_engine(source: Artifact, options: EngineOptions, gpu: Gpu, dataset: Dataset | None = None) -> Built:
    """Builds the engine, compares its logits with ONNX Runtime's, and measures its test accuracy on `dataset`.

    Raises EngineError, EquivalenceError or AccuracyError.
    """
    import polygraphy
    import tensorrt as trt
    from polygraphy.backend.trt import TrtRunner

    proto, config = prepare(onnx.load_from_string(source.data)), source.config
    start_ns = time.perf_counter_ns()
    plan = build(proto, config, options)
    build_s = (time.perf_counter_ns() - start_ns) / 1e9
    with load(plan) as engine, TrtRunner(engine) as runner:

        def classify(images: Images) -> Any:  # the runner reuses its output memory
            return np.array(runner.infer({INPUT_NAME: np.ascontiguousarray(images)})[OUTPUT_NAME])

        images = embedded_sample(config).images
        comparison = compare_engine(onnx_classifier(source.data), classify, images, options)
        layer_types = check_layers(_inspect(engine, runner.context), options.precision)
        any_batch = in_parts(classify, options.max_batch, options.min_batch)
        sample = Sample({INPUT_NAME: images[:1]}, {OUTPUT_NAME: any_batch(images[:1])})
        measured = None
        if dataset:
            measured = engine_accuracy("TensorRT", options.precision, any_batch, source.data, dataset, ACCURACY_DROP)
    profile = Profile(options.min_batch, options.opt_batch, options.max_batch)
    facts = {
        "tensorrt": trt.__version__,
        "polygraphy": polygraphy.__version__,
        "gpu": gpu.name,
        "compute_capability": gpu.compute_capability,
        "precision": options.precision,
        "version_compatible": options.version_compatible,
        "hardware_compatible": options.hardware_compatible,
        "workspace_mib": options.workspace_mib,
        "onnx_sha256": source.manifest.files[ONNX_FILE],
        "build_s": round(build_s, 3),
        "layer_types": layer_types,
        "tolerance": comparison.tolerance,
    }
    engine_facts = Plan(profile, comparison.max_abs_error, facts)
    test_accuracy = measured.accuracy if measured else source.origin.test_accuracy
    origin = replace(source.origin, precision=options.precision, test_accuracy=test_accuracy, engine=engine_facts)
    artifact = classifier_artifact(PLAN_FILE, plan, source.network, sample, origin)
    return Built(artifact, engine_facts, comparison, measured)


def prepare(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that reads the batch size after the images' Cast: TensorRT accepts uint8 only as input of Cast.

    Raises EngineError for a graph that ONNX's checker refuses.
    """
    prepared = deepcopy(proto)
    nodes = prepared.graph.node
    for image in prepared.graph.input:
        cast = next((node for node in nodes if node.op_type == "Cast" and image.name in node.input), None)
        shape_nodes = [node for node in nodes if node.op_type == "Shape" and image.name in node.input]
        if cast and shape_nodes:
            for node in shape_nodes:
                node.input[0] = cast.output[0]
            ordered = [cast, *(node for node in nodes if node is not cast)]  # before the Shape nodes
            del nodes[:]
            nodes.extend(ordered)
    try:
        onnx.checker.check_model(prepared, full_check=True)
    except (onnx.checker.ValidationError, shape_inference.InferenceError) as error:
        raise EngineError(f"ONNX: expected a valid graph, found {' '.join(str(error).split())}") from error
    return prepared


def build(proto: onnx.ModelProto, config: ModelConfig, options: EngineOptions) -> bytes:
    """The serialised plan of a prepared graph. Raises EngineError."""
    import tensorrt as trt
    from polygraphy.backend.trt import CreateConfig, Profile, engine_bytes_from_network, network_from_onnx_bytes

    cache, mib, level = options.timing_cache, options.workspace_mib, trt.HardwareCompatibilityLevel
    if cache:
        cache.parent.mkdir(parents=True, exist_ok=True)  # Polygraphy locks the file before it looks
    with _engine_errors():
        create_config = CreateConfig(
            tf32=options.precision in ("tf32", "int8"),  # of what stays in float32
            profiles=[
                Profile().add(INPUT_NAME, *((size, *config.input_shape) for size in sizes))
                for sizes in options.profiles
            ],
            load_timing_cache=str(cache) if cache and cache.is_file() else None,
            profiling_verbosity=trt.ProfilingVerbosity.DETAILED,  # else the inspector tells only names
            memory_pool_limits={trt.MemoryPoolType.WORKSPACE: mib << 20} if mib else None,
            version_compatible=options.version_compatible,
            hardware_compatibility_level=level.AMPERE_PLUS if options.hardware_compatible else level.NONE,
        )
        network = network_from_onnx_bytes(proto.SerializeToString(), strongly_typed=True)
        save = str(cache) if cache else None
        return bytes(engine_bytes_from_network(network, config=create_config, save_timing_cache=save))


@contextmanager
def load(plan: bytes) -> Iterator[Any]:
    """Yields the tensorrt.ICudaEngine. Raises EngineError, also for TensorRT's failures within the block."""
    from polygraphy.backend.trt import engine_from_bytes

    with _engine_errors():
        yield engine_from_bytes(plan)


def _inspect(engine: Any, context: Any) -> str:
    """The layers as JSON. With a dynamic batch, most types appear only in a context that has run."""
    import tensorrt as trt

    inspector = engine.create_engine_inspector()
    inspector.execution_context = context
    return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def check_layers(information: str, precision: Precision) -> dict[str, int]:
    """Float types of a layer's tensors -> number of such layers; empty if the inspector's JSON hides types.

    Raises EngineError for a type that a plan of `precision` must not have, and if no layer has its main type.
    """
    allowed = PRECISIONS[precision].plan
    counted: Counter[str] = Counter()
    for layer in json.loads(information)["Layers"]:
        if not isinstance(layer, dict):
            continue  # only a name
        tensors = [*layer.get("Inputs", ()), *layer.get("Outputs", ())]
        texts = [tensor.get("Datatype") or tensor.get("Format/Datatype") or "" for tensor in tensors]
        types = {WORDS[word] for text in texts for word in re.findall(r"\w+", text) if word in WORDS}
        names = " and ".join(sorted(types))
        if types - {*allowed}:
            raise EngineError(f"layer {layer.get('Name')}: expected {' or '.join(allowed)}, found {names}")
        if types:
            counted[names] += 1
    if counted and not any(allowed[0] in types for types in counted):
        raise EngineError(f"expected layers in {allowed[0]}, found {', '.join(counted)} alone")
    return dict(counted)


def compare_engine(expected: Classifier, engine: Classifier, images: Images, options: EngineOptions) -> Comparison:
    """Compares logits on uint8 images (n, C, H, W), at batch sizes that the engine takes.

    Below float32, leaves out images whose two best logits lie within rounding: their class may change.
    Raises EquivalenceError.
    """
    logits = np.sort(expected(images), axis=1)
    tolerance = PRECISIONS[options.precision].tolerance
    if options.precision != "fp32":
        images = images[logits[:, -1] - logits[:, -2] > 2 * tolerance * float(np.abs(logits).max())]
    sizes = {size for size in BATCH_SIZES if options.min_batch <= size <= options.max_batch}
    sizes |= {options.min_batch, options.opt_batch, options.max_batch}
    repeated = np.resize(images, (max(sizes) if len(images) else 0, *images.shape[1:]))
    stages = f"TensorRT, {options.precision}"
    return compare(stages, in_parts(expected, REFERENCE_BATCH), engine, repeated, tolerance, sorted(sizes))


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Turns Polygraphy's errors into EngineError, and silences its log below errors."""
    from polygraphy.exception import PolygraphyException
    from polygraphy.logger import G_LOGGER

    try:
        with G_LOGGER.verbosity(G_LOGGER.ERROR):
            yield
    except PolygraphyException as error:
        raise EngineError(f"TensorRT: {next(iter(str(error).splitlines()), 'no reason given')}") from error
