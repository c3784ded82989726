"""Makes a checkpoint a version in a model repository, or a file: exports, compares, lowers the precision, writes.

Nothing is written unless all comparisons hold and the accuracy stays. Functions raise CheckpointError, DataError,
ExportError or OSError.
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
from export.publishing.build_config_pbtxt import Serving
from export.publishing.publish import check_name, expecting_repository, publish
from export.publishing.sidecar import check_replaced, write_with_sidecars
from export.sample_images import embedded_sample, own_dataset, own_sample
from models.checkpoints.checkpoint import Checkpoint, load
from models.data import DataError, Dataset

if TYPE_CHECKING:
    from export.engines.gpu import Gpu
    from export.engines.tensorrt_engine import Built, EngineOptions


@dataclass(frozen=True)
class Target:
    """The precision to compute in, and the options of the model's configuration, which name the engine."""

    precision: Precision = "fp32"
    serving: Serving = field(default_factory=Serving)

    @property
    def is_exact(self) -> bool:
        """Whether the file stays float32 and runs in ONNX Runtime: then no accuracy is measured."""
        return self.precision in ("fp32", "tf32") and self.serving.engine != "openvino"


@dataclass(frozen=True)
class Ready:
    """An artifact to publish.

    `exported`: the float32 export that `artifact` is made of. `accuracies`: measured after a conversion and in another
    engine. `choice`: the measurements by which a goal was met; None without a goal.
    """

    exported: Exported
    artifact: Artifact
    serving: Serving
    accuracies: tuple[Accuracies, ...] = ()
    choice: Choice | None = None


def export_checkpoint(path: Path, form: Form | None = None, data_dir: Path | None = None) -> Exported:
    """Exports the checkpoint at `path`, compared on images of the network's dataset, which is in `data_dir`.

    Warns with UntrainedBlockWarning.
    """
    return _export(load(path), form or Form(), data_dir)


def export_for(
    target: Target | Goal,
    path: Path,
    form: Form,
    max_drop_points: float = 0.1,
    depth: int | None = None,
    data_dir: Path | None = None,
) -> Ready:
    """As `export_checkpoint`, in a precision and for an engine; a goal leaves these to measurement on this machine.

    `depth`: number of blocks that are read; None: all. Raises AccuracyError if the test accuracy falls by more than
    `max_drop_points` percentage points.
    """
    if isinstance(target, Target) and target.serving.engine == "openvino":
        openvino_module()
    loaded = load(path, depth)
    if isinstance(target, Target) and target.is_exact:
        exported = _export(loaded, form, data_dir)
        # TF32 has the same file; config.pbtxt allows the rounding.
        return Ready(exported, exported.artifact.with_origin(precision=target.precision), target.serving)
    dataset = own_dataset(loaded.config, loaded.metrics, data_dir)
    exported = _export(loaded, form, data_dir)
    if isinstance(target, Target):
        return _for_target(exported, target, dataset, max_drop_points)
    return _for_goal(exported, target, dataset, max_drop_points)


def _export(loaded: Checkpoint, form: Form, data_dir: Path | None) -> Exported:
    """Compares on the network's dataset if it is there, else on the images that come with the project."""
    try:
        images = own_sample(loaded.config, loaded.metrics, data_dir)
    except DataError as missing:
        images = embedded_sample(loaded.config)
        images = replace(images, note=f"proved on {images.of}, not on the model's own images; {missing}")
    return export(loaded, form, images)


def _for_target(exported: Exported, target: Target, dataset: Dataset, max_drop_points: float) -> Ready:
    """Lowers the precision, and measures the accuracy in OpenVINO if that is the engine."""
    artifact, accuracies, serving = exported.artifact, [], target.serving
    if (precision := file_precision(target.precision, serving.engine or "onnxruntime")) != "fp32":
        artifact, converted = lower(artifact, precision, dataset, max_drop_points)
        accuracies.append(converted)
    if serving.engine == "openvino":
        serving = replace(serving, bfloat16=has_bfloat16())
        in_engine = check_accuracy(artifact.data, dataset, max_drop_points, has_bfloat16())
        artifact = artifact.with_origin(test_accuracy=in_engine.accuracy)
        accuracies.append(in_engine)
    return Ready(exported, artifact, serving, tuple(accuracies))


def _for_goal(exported: Exported, goal: Goal, dataset: Dataset, max_drop_points: float) -> Ready:
    """Measures engines, precisions, instances and threads, and takes the best."""
    candidates: dict[Precision, tuple[Artifact, tuple[Accuracies, ...]]] = {"fp32": (exported.artifact, ())}
    files: dict[Precision, bytes | ExportError] = {"fp32": exported.onnx}
    try:
        int8, converted = lower(exported.artifact, "int8", dataset, max_drop_points)
        candidates["int8"], files["int8"] = (int8, (converted,)), int8.data
    except AccuracyError as reason:
        files["int8"] = reason
    choice = choose(files, dataset, goal, max_drop_points)
    best = choice.best.setting
    artifact, accuracies = candidates[file_precision(best.precision, best.engine)]
    artifact = artifact.with_origin({"choice": choice.manifest()}, test_accuracy=choice.best.accuracy)
    served_goal = goal if best.engine == "onnxruntime" else None  # for the second session of our backend
    serving = Serving(best.engine, best.instances, best.threads, best.precision == "bf16", goal=served_goal)
    return Ready(exported, artifact, serving, accuracies, choice)


def export_engine(source: Artifact, options: EngineOptions, gpu: Gpu, data_dir: Path | None = None) -> Built:
    """Builds a TensorRT engine from an ONNX artifact in float32 or in the engine's precision.

    A conversion may lose ACCURACY_DROP percentage points of test accuracy, and so may the engine, whose accuracy is
    measured only if the dataset is there. Raises PublishError for a source in another precision.
    """
    from export.engines.tensorrt_engine import ACCURACY_DROP, build_engine

    @cache
    def dataset(fetch: bool) -> Dataset:
        return own_dataset(source.config, source.network.metrics, data_dir, fetch)

    precision, wanted = source.origin.precision, file_precision(options.precision, "tensorrt")
    if precision not in (wanted, "fp32"):
        usable = "fp32" if wanted == "fp32" else f"fp32 or {wanted}"
        raise PublishError(f"ONNX: expected {usable} to build {wanted} from, found {precision}")
    if precision != wanted:
        source, _ = lower(source, wanted, dataset(True), ACCURACY_DROP)
    try:
        images = dataset(False)
    except DataError:
        images = None
    return build_engine(source, options, gpu, images)


def served_name(model: str, engine: str | None) -> str:
    """The default name of a model in the repository."""
    return model if engine in (None, "onnxruntime") else f"{model}_{engine}"


def check_destination(name: str | None, output: Path | None, repository: Path, source: Path | None = None) -> None:
    """Checks before an export, which takes a quarter of a minute, that its result can be written.

    `source`: the checkpoint, which no output may replace. Raises PublishError, and OSError for a folder that takes no
    file.
    """
    if name is not None:
        check_name(name)
    if output and (output.suffix in (".json", ".npz", ".safetensors") or output.is_dir()):
        kind = "a folder" if output.is_dir() else "the ending of a manifest, a sample or a checkpoint"
        raise PublishError(f"{output}: expected a file as OUT.onnx, found {kind}")
    if output and source and output.exists() and source.exists() and output.samefile(source):
        raise PublishError(f"{output}: expected another file than the checkpoint, found the checkpoint itself")
    if output:
        with naming(output):
            check_writable(output.parent)
        check_replaced(output)
    else:
        with expecting_repository(repository):
            check_writable(repository)


def write(artifact: Artifact, output: Path | None, repository: Path, name: str, serving: Serving) -> Path:
    """Writes the file `output` with manifest and sample or, if `output` is None, publishes the model `name`.

    Returns the path of the file or of the version's folder.
    """
    if output:
        write_with_sidecars(output, artifact)
        return output
    return publish(repository, name, artifact, serving)
