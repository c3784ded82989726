"""Checkpoint -> compared file -> version in a model repository.

Writes only if every comparison and accuracy gate held. Raises CheckpointError, DataError, ExportError or OSError.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from export.engines.choosing import Goal, Numbers, choose
from export.engines.openvino_engine import check_accuracy, has_bfloat16, openvino_module
from export.errors import ExportError, PublishError
from export.graph import DEFAULT_OPSET, Exported, export
from export.images import NamedImages, embedded_sample, own_dataset, own_sample
from export.precision import AccuracyError, Lowered, lower
from export.publishing.artifact import Artifact
from export.publishing.beside import write_beside
from export.publishing.publish import check_name, publish
from export.publishing.triton_config import Engine, Serving
from export.rewrites import pipeline
from export.rewrites.fold import fold_batchnorm
from export.rewrites.fuse import fuse_attention
from export.rewrites.pipeline import Rewrite
from models.checkpoint import Checkpoint, load
from models.data import DataError, Dataset

if TYPE_CHECKING:
    from export.engines.gpu import Gpu
    from export.engines.tensorrt_engine import Built, EngineOptions

Backend = Literal["onnxruntime", "openvino", "auto"]
Precision = Literal["fp32", "tf32", "fp16", "int8"]
Rewrites = Literal["none", "bn", "all"]


@dataclass(frozen=True)
class ExportOptions:
    """The file goes to `output`, else to the model `name` in `repository`, else nowhere.

    The backend "auto" chooses engine, precision, instances and threads for `goal`. `model`: the network's name where
    `name` is not given, by default the name in its configuration.
    """

    rewrites: Rewrites = "bn"
    fuse_attention: bool = False
    depth: int | None = None  # blocks; None: all
    precision: Precision = "fp32"
    max_accuracy_drop: float = 0.1  # percentage points
    data_dir: Path | None = None
    opset: int = DEFAULT_OPSET
    backend: Backend | None = None
    goal: Goal = "throughput"
    instances: int | None = None
    threads: int | None = None
    repository: Path | None = None
    name: str | None = None
    output: Path | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        """Raises PublishError before the export."""
        check_destination(self.name, self.output)

    @property
    def passes(self) -> tuple[Rewrite, ...]:
        exact: tuple[Rewrite, ...] = {"none": (), "bn": pipeline.FUSE, "all": pipeline.ALL}[self.rewrites]
        return (*exact, fuse_attention) if self.fuse_attention else exact

    @property
    def required(self) -> tuple[Rewrite, ...]:
        return (fold_batchnorm,) if self.rewrites == "bn" else ()


def export_checkpoint(path: Path, options: ExportOptions | None = None) -> Exported:
    """Warns with UntrainedBlockWarning."""
    options = options or ExportOptions()
    if (output := options.output) and output.exists() and path.exists() and output.samefile(path):
        raise PublishError(f"{output}: expected another file than the checkpoint, found the checkpoint itself")
    if options.backend == "openvino":
        openvino_module()
    loaded = load(path, options.depth)
    images, note = _images(loaded, options.data_dir)
    exact = options.precision in ("fp32", "tf32") and options.backend in (None, "onnxruntime")
    dataset = None if exact else own_dataset(loaded.config, loaded.metrics, options.data_dir)
    exported = export(loaded, options.passes, options.required, options.opset, images)
    if dataset and options.backend == "auto":
        exported, serving = _best(exported, dataset, options)
    else:
        exported, serving = _asked_for(exported, dataset, options)
    name = options.name or served_name(options.model or loaded.config.model, serving.engine)
    written = write(exported.artifact, options.output, options.repository, name, serving)
    return replace(exported, note=note, path=written)


def _asked_for(exported: Exported, dataset: Dataset | None, options: ExportOptions) -> tuple[Exported, Serving]:
    engine: Engine | None = None if options.backend == "auto" else options.backend
    bfloat16 = engine == "openvino" and has_bfloat16()
    serving = Serving(engine, options.instances, options.threads, bfloat16)
    if options.precision == "tf32":  # the same file; config.pbtxt allows the rounding
        return replace(exported, artifact=exported.artifact.telling(precision="tf32")), serving
    if dataset and options.precision != "fp32":
        exported = _lowered(exported, options.precision, dataset, options.max_accuracy_drop)
    if not dataset or engine != "openvino":
        return exported, serving
    measured = check_accuracy(exported.onnx, dataset, options.max_accuracy_drop, bfloat16)
    artifact = exported.artifact.telling(test_accuracy=measured.accuracy)
    return replace(exported, artifact=artifact, in_engine=measured), serving


def _lowered(exported: Exported, precision: Lowered, dataset: Dataset, max_drop_points: float) -> Exported:
    artifact, converted = lower(exported.artifact, precision, dataset, max_drop_points)
    return replace(exported, artifact=artifact, converted=converted)


def _best(float32: Exported, dataset: Dataset, options: ExportOptions) -> tuple[Exported, Serving]:
    int8: Exported | ExportError
    try:
        int8 = _lowered(float32, "int8", dataset, options.max_accuracy_drop)
    except AccuracyError as reason:
        int8 = reason
    files: dict[Numbers, bytes | ExportError] = {
        "fp32": float32.onnx,
        "int8": int8.onnx if isinstance(int8, Exported) else int8,
    }
    choice = choose(files, dataset, options.goal, options.max_accuracy_drop)
    best = choice.best.candidate
    exported = int8 if best.precision == "int8" else float32
    if isinstance(exported, ExportError):
        raise exported
    artifact = exported.artifact.telling(test_accuracy=choice.best.accuracy, choice=choice.manifest())
    serving = Serving(best.engine, best.instances, best.threads, best.precision == "bf16")
    return replace(exported, artifact=artifact, choice=choice), serving


def export_engine(source: Artifact, options: EngineOptions, gpu: Gpu, data_dir: Path | None = None) -> Built:
    """Conversion and, with test images, the engine may each lose ACCURACY_DROP percentage points of test accuracy.

    Raises PublishError for a source in another precision.
    """
    from export.engines.tensorrt_engine import ACCURACY_DROP, make

    @cache
    def dataset(fetch: bool) -> Dataset:
        return own_dataset(source.config, source.about["metrics"], data_dir, fetch)

    held, wanted = source.manifest.precision, "fp16" if options.precision == "fp16" else "fp32"
    if held not in (wanted, "fp32"):
        usable = "fp32" if wanted == "fp32" else f"fp32 or {wanted}"
        raise PublishError(f"ONNX: expected {usable} to build {wanted} from, found {held}")
    if held != wanted:
        source, _ = lower(source, "fp16", dataset(True), ACCURACY_DROP)
    try:
        images = dataset(False)
    except DataError:
        images = None
    return make(source, options, gpu, images)


def served_name(model: str, engine: str | None) -> str:
    return model if engine in (None, "onnxruntime") else f"{model}_{engine}"


def _images(loaded: Checkpoint, data_dir: Path | None) -> tuple[NamedImages, str | None]:
    try:
        return own_sample(loaded.config, loaded.metrics, data_dir), None
    except DataError as missing:
        images = embedded_sample(loaded.config)
        return images, f"proved on {images.of}, not on the model's own images; {missing}"


def check_destination(name: str | None, output: Path | None) -> None:
    """Raises PublishError."""
    if name is not None:
        check_name(name)
    if output and (output.suffix in (".json", ".npz") or output.is_dir()):
        found = "a folder" if output.is_dir() else "the name of its manifest or sample"
        raise PublishError(f"{output}: expected a file as OUT.onnx, found {found}")


def write(artifact: Artifact, output: Path | None, repository: Path | None, name: str, serving: Serving) -> Path | None:
    """Writes the file `output` with manifest and sample, else publishes to `repository`, else does nothing."""
    if output:
        write_beside(output, artifact)
        return output
    return publish(repository, name, artifact, serving) if repository else None
