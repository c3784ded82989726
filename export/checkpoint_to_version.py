"""Checkpoint -> compared file -> version in a model repository.

Writes only if every comparison and accuracy gate held. Raises CheckpointError, DataError, ExportError or OSError.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from common.files import check_writable, naming
from export.checkpoint_to_onnx import Exported, Form, export
from export.engines.choose_engine import Choice, Goal, choose
from export.engines.openvino_engine import check_accuracy, has_bfloat16, openvino_module
from export.errors import ExportError, PublishError
from export.precision import Accuracies, AccuracyError, lower
from export.precision_table import Precision, file_precision
from export.publishing.artifact import Artifact
from export.publishing.publish import check_name, no_file, publish
from export.publishing.sidecar import write_beside
from export.publishing.triton_config import Serving
from export.sample_images import NamedImages, embedded_sample, own_dataset, own_sample
from models.checkpoints.checkpoint import Checkpoint, load
from models.data import DataError, Dataset

if TYPE_CHECKING:
    from export.engines.gpu import Gpu
    from export.engines.tensorrt_engine import Built, EngineOptions


@dataclass(frozen=True)
class Target:
    """The precision of the file, and what will run it."""

    precision: Precision = "fp32"
    serving: Serving = field(default_factory=Serving)

    @property
    def is_exact(self) -> bool:
        """Whether the answers are float32's: then no accuracy is measured."""
        return self.precision in ("fp32", "tf32") and self.serving.engine != "openvino"


@dataclass(frozen=True)
class Ready:
    """A file for a server: `exported`, in another precision if that was asked for or measured as the best.

    `accuracies`: of the conversion and in the engine, where they were measured. `choice`: only for a goal.
    """

    exported: Exported
    artifact: Artifact
    serving: Serving
    accuracies: tuple[Accuracies, ...] = ()
    choice: Choice | None = None


def export_checkpoint(path: Path, form: Form | None = None, data_dir: Path | None = None) -> Exported:
    """`data_dir` has the network's dataset. Warns with UntrainedBlockWarning."""
    return _proved(load(path), form or Form(), data_dir)


def export_for(
    target: Target | Goal,
    path: Path,
    form: Form,
    max_drop_points: float = 0.1,
    depth: int | None = None,
    data_dir: Path | None = None,
) -> Ready:
    """As `export_checkpoint`. `depth`: blocks; None: all. A goal leaves engine, precision, instances and threads to
    measurement.

    Raises AccuracyError if the test accuracy falls by more than `max_drop_points` percentage points.
    """
    if isinstance(target, Target) and target.serving.engine == "openvino":
        openvino_module()
    loaded = load(path, depth)
    if isinstance(target, Target) and target.is_exact:
        exported = _proved(loaded, form, data_dir)
        # TF32 has the same file; config.pbtxt allows the rounding.
        return Ready(exported, exported.artifact.telling(precision=target.precision), target.serving)
    dataset = own_dataset(loaded.config, loaded.metrics, data_dir)
    exported = _proved(loaded, form, data_dir)
    if isinstance(target, Target):
        return _measured(exported, target, dataset, max_drop_points)
    return _best(exported, target, dataset, max_drop_points)


def _proved(loaded: Checkpoint, form: Form, data_dir: Path | None) -> Exported:
    return export(loaded, form, _images(loaded, data_dir))


def _measured(exported: Exported, target: Target, dataset: Dataset, max_drop_points: float) -> Ready:
    artifact, accuracies, serving = exported.artifact, [], target.serving
    if (precision := file_precision(target.precision, serving.engine or "onnxruntime")) != "fp32":
        artifact, converted = lower(artifact, precision, dataset, max_drop_points)
        accuracies.append(converted)
    if serving.engine == "openvino":
        serving = replace(serving, bfloat16=has_bfloat16())
        in_engine = check_accuracy(artifact.data, dataset, max_drop_points, has_bfloat16())
        artifact = artifact.telling(test_accuracy=in_engine.accuracy)
        accuracies.append(in_engine)
    return Ready(exported, artifact, serving, tuple(accuracies))


def _best(exported: Exported, goal: Goal, dataset: Dataset, max_drop_points: float) -> Ready:
    made: dict[Precision, tuple[Artifact, tuple[Accuracies, ...]]] = {"fp32": (exported.artifact, ())}
    files: dict[Precision, bytes | ExportError] = {"fp32": exported.onnx}
    try:
        int8, converted = lower(exported.artifact, "int8", dataset, max_drop_points)
        made["int8"], files["int8"] = (int8, (converted,)), int8.data
    except AccuracyError as reason:
        files["int8"] = reason
    choice = choose(files, dataset, goal, max_drop_points)
    best = choice.best.setting
    artifact, accuracies = made[file_precision(best.precision, best.engine)]
    artifact = artifact.telling({"choice": choice.manifest()}, test_accuracy=choice.best.accuracy)
    shared = Serving(best.engine, best.instances, best.threads, best.precision == "bf16")
    serving = replace(shared, goal=goal) if best.engine == "onnxruntime" else shared
    return Ready(exported, artifact, serving, accuracies, choice)


def export_engine(source: Artifact, options: EngineOptions, gpu: Gpu, data_dir: Path | None = None) -> Built:
    """Conversion and, with test images, the engine may each lose ACCURACY_DROP percentage points of test accuracy.

    Raises PublishError for a source in another precision.
    """
    from export.engines.tensorrt_engine import ACCURACY_DROP, make

    @cache
    def dataset(fetch: bool) -> Dataset:
        return own_dataset(source.config, source.network.metrics, data_dir, fetch)

    held, wanted = source.origin.precision, file_precision(options.precision, "tensorrt")
    if held not in (wanted, "fp32"):
        usable = "fp32" if wanted == "fp32" else f"fp32 or {wanted}"
        raise PublishError(f"ONNX: expected {usable} to build {wanted} from, found {held}")
    if held != wanted:
        source, _ = lower(source, wanted, dataset(True), ACCURACY_DROP)
    try:
        images = dataset(False)
    except DataError:
        images = None
    return make(source, options, gpu, images)


def served_name(model: str, engine: str | None) -> str:
    return model if engine in (None, "onnxruntime") else f"{model}_{engine}"


def _images(loaded: Checkpoint, data_dir: Path | None) -> NamedImages:
    try:
        return own_sample(loaded.config, loaded.metrics, data_dir)
    except DataError as missing:
        images = embedded_sample(loaded.config)
        return replace(images, note=f"proved on {images.of}, not on the model's own images; {missing}")


def check_destination(name: str | None, output: Path | None, repository: Path, source: Path | None = None) -> None:
    """Raises PublishError, and OSError for a folder that takes no file: an export takes a quarter of a minute.

    `source`: the checkpoint, which no output may replace.
    """
    if name is not None:
        check_name(name)
    if output and (output.suffix in (".json", ".npz") or output.is_dir()):
        found = "a folder" if output.is_dir() else "the name of its manifest or sample"
        raise PublishError(f"{output}: expected a file as OUT.onnx, found {found}")
    if output and source and output.exists() and source.exists() and output.samefile(source):
        raise PublishError(f"{output}: expected another file than the checkpoint, found the checkpoint itself")
    if output:
        with naming(output):
            check_writable(output.parent)
    else:
        with no_file(repository):
            check_writable(repository)


def write(artifact: Artifact, output: Path | None, repository: Path, name: str, serving: Serving) -> Path:
    """Writes the file `output` with manifest and sample, else publishes the model `name`; returns where it is."""
    if output:
        write_beside(output, artifact)
        return output
    return publish(repository, name, artifact, serving)
