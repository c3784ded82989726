"""Checkpoint -> proven file -> version in a model repository.

Writes only if every proof and accuracy gate held. Raises CheckpointError, DataError, ExportError or OSError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from export.engines.choosing import Choice, Goal, Numbers, choose
from export.engines.openvino_engine import check_accuracy, has_bfloat16, openvino_module
from export.equivalence import Proof, Sample, embedded_sample
from export.errors import ExportError
from export.graph import DEFAULT_OPSET, Exported, export
from export.own_data import own_dataset, own_sample
from export.precision import AccuracyError, Converted, EngineAccuracy, Lowering
from export.publishing.artifact import Artifact, PublishError
from export.publishing.publish import check_name, publish
from export.publishing.triton_config import Engine, Serving
from export.rewrites import pipeline
from export.rewrites.absorb import absorb_attention
from export.rewrites.fold import fold_batchnorm
from export.rewrites.fuse import fuse_attention
from export.rewrites.pipeline import Rewrite, Step
from export.rewrites.prune import cls_only
from models.checkpoint import Checkpoint, load
from models.data import DataError, Dataset
from models.files import write_atomically
from models.macs import macs_per_image

if TYPE_CHECKING:
    from export.engines.gpu import Gpu
    from export.engines.onnx_source import OnnxSource
    from export.engines.tensorrt_engine import Built, EngineOptions

Backend = Literal["onnxruntime", "openvino", "auto"]
Precision = Literal["fp32", "tf32", "fp16", "int8"]


@dataclass(frozen=True)
class Destination:
    """The file `output`, else the model `name` in `repository`, else nowhere."""

    repository: Path | None = None
    name: str | None = None
    output: Path | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        """Raises PublishError before the export."""
        if self.name is not None:
            check_name(self.name)
        if self.output and (self.output.suffix == ".json" or self.output.is_dir()):
            found = "a folder" if self.output.is_dir() else "the name of its manifest"
            raise PublishError(f"{self.output}: expected a file as OUT.onnx, found {found}")


@dataclass(frozen=True)
class ExportOptions:
    """The backend "auto" chooses engine, precision, instances and threads for `goal`."""

    destination: Destination = Destination()
    depth: int | None = None  # blocks; None: all
    fuse_bn: bool = True
    absorb_attention: bool = False
    cls_only: bool = False
    optimize: bool = False
    fuse_attention: bool = False
    precision: Precision = "fp32"
    max_accuracy_drop: float = 0.1  # percentage points
    data_dir: Path | None = None
    opset: int = DEFAULT_OPSET
    backend: Backend | None = None
    goal: Goal = "throughput"
    instances: int | None = None
    threads: int | None = None

    @property
    def required(self) -> list[Rewrite]:
        asked = {
            fold_batchnorm: self.fuse_bn,
            absorb_attention: self.absorb_attention,
            cls_only: self.cls_only,
        }
        return [rewrite for rewrite, wanted in asked.items() if wanted]

    @property
    def rewrites(self) -> tuple[Rewrite, ...]:
        if self.optimize or self.backend == "auto":
            exact = pipeline.ALL
        else:
            exact = (*self.required, *(pipeline.FUSE if self.fuse_bn else ()))
        return (*exact, fuse_attention) if self.fuse_attention else exact


@dataclass(frozen=True)
class Published:
    checkpoint: Checkpoint
    exported: Exported
    artifact: Artifact
    macs: int  # of one image before any rewrite
    engine_accuracy: EngineAccuracy | None = None
    choice: Choice | None = None
    note: str | None = None  # why the proof used other images than the model's own
    path: Path | None = None

    @property
    def onnx(self) -> bytes:
        return self.exported.onnx

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.exported.steps

    @property
    def proofs(self) -> tuple[Proof, ...]:
        return self.exported.proofs

    @property
    def converted(self) -> Converted | None:
        return self.exported.converted


def export_checkpoint(path: Path, options: ExportOptions | None = None) -> Published:
    """Warns with UntrainedBlockWarning."""
    options = options or ExportOptions()
    if (output := options.destination.output) and output.exists() and path.exists() and output.samefile(path):
        raise PublishError(f"{output}: expected another file than the checkpoint, found the checkpoint itself")
    if options.backend == "openvino":
        openvino_module()
    loaded = load(path, options.depth)
    sample, note = _sample(loaded, options.data_dir)
    make = partial(export, loaded, options.rewrites, options.required, options.opset, sample=sample)
    dataset = partial(own_dataset, loaded.config, loaded.metrics, options.data_dir)
    if options.backend == "auto":
        made = _best(make, dataset(), options)
    else:
        lowers = options.precision not in ("fp32", "tf32") or options.backend == "openvino"
        made = _asked_for(make, dataset() if lowers else None, options, options.backend)
    name = served_name(options.destination.model or loaded.config.model, made.serving.engine)
    written = _write(made.artifact, options.destination, name, made.serving)
    macs = macs_per_image(loaded.model)
    return Published(loaded, made.exported, made.artifact, macs, made.accuracy, made.choice, note, written)


@dataclass(frozen=True)
class _Made:
    exported: Exported
    artifact: Artifact
    serving: Serving
    accuracy: EngineAccuracy | None = None
    choice: Choice | None = None


Make = Callable[..., Exported]
"""Makes the proven file, in float32 unless `lowering` is given."""


def _asked_for(make: Make, dataset: Dataset | None, options: ExportOptions, engine: Engine | None) -> _Made:
    bfloat16 = engine == "openvino" and has_bfloat16()
    serving = Serving(engine, options.instances, options.threads, bfloat16)
    lowering = None
    if dataset and options.precision != "fp32" and options.precision != "tf32":
        lowering = Lowering(options.precision, dataset, options.max_accuracy_drop)
    exported = make(lowering=lowering)
    if options.precision == "tf32":  # the same file; config.pbtxt allows the rounding
        return _Made(exported, _with(exported.artifact, precision="tf32"), serving)
    if not dataset or engine != "openvino":
        return _Made(exported, exported.artifact, serving)
    accuracy = check_accuracy(exported.onnx, dataset, options.max_accuracy_drop, bfloat16)
    return _Made(exported, _with(exported.artifact, test_accuracy=accuracy.accuracy), serving, accuracy)


def _best(make: Make, dataset: Dataset, options: ExportOptions) -> _Made:
    files: dict[Numbers, Exported | ExportError] = {"fp32": make()}
    try:
        files["int8"] = make(lowering=Lowering("int8", dataset, options.max_accuracy_drop))
    except AccuracyError as reason:
        files["int8"] = reason
    measured = {name: file.onnx if isinstance(file, Exported) else file for name, file in files.items()}
    choice = choose(measured, dataset, options.goal, options.max_accuracy_drop)
    best = choice.best.candidate
    exported = files["int8" if best.precision == "int8" else "fp32"]
    if isinstance(exported, ExportError):
        raise exported
    artifact = _with(exported.artifact, test_accuracy=choice.best.accuracy, choice=choice.manifest())
    serving = Serving(best.engine, best.instances, best.threads, best.precision == "bf16")
    return _Made(exported, artifact, serving, choice=choice)


def _with(artifact: Artifact, **fields: Any) -> Artifact:
    return replace(artifact, manifest=artifact.manifest | fields)


def export_engine(
    source: OnnxSource, options: EngineOptions, gpu: Gpu, destination: Destination, data_dir: Path | None = None
) -> tuple[Built, Path | None]:
    """Conversion and, with test images, the engine may each lose ACCURACY_DROP percentage points of test accuracy."""
    from export.engines.onnx_source import in_precision
    from export.engines.tensorrt_engine import ACCURACY_DROP, make

    @cache
    def dataset(fetch: bool) -> Dataset:
        return own_dataset(source.config, source.manifest["metrics"], data_dir, fetch)

    graph_precision = "fp16" if options.precision == "fp16" else "fp32"
    converted = in_precision(source, graph_precision, lambda: Lowering("fp16", dataset(True), ACCURACY_DROP))
    try:
        images = dataset(False)
    except DataError:
        images = None
    built = make(converted, options, gpu, images)
    default = served_name(source.config.model, "trt")
    return built, _write(built.artifact, destination, default, Serving("tensorrt"))


def served_name(model: str, engine: str | None) -> str:
    return model if engine in (None, "onnxruntime") else f"{model}_{engine}"


def _sample(loaded: Checkpoint, data_dir: Path | None) -> tuple[Sample, str | None]:
    try:
        return own_sample(loaded.config, loaded.metrics, data_dir), None
    except DataError as missing:
        sample = embedded_sample(loaded.config)
        return sample, f"proved on {sample.of}, not on the model's own images; {missing}"


def _write(artifact: Artifact, destination: Destination, default_name: str, serving: Serving) -> Path | None:
    if output := destination.output:
        write_atomically(output, artifact.data)
        write_atomically(output.with_suffix(".json"), artifact.manifest_json())
        return output
    if not destination.repository:
        return None
    name = default_name if destination.name is None else destination.name
    return publish(destination.repository, name, artifact, serving)
