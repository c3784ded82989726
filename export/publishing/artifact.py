"""A version: a file that Triton loads, its weights and sample, and a manifest with their hashes, tensors and origin.

In: contents, a sample and what the stage tells of the file; or a version's folder. Out: an `Artifact`, or PublishError
if contents and manifest disagree.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from export.errors import PublishError, reason
from export.publishing.sample import Sample
from models.config import INPUT_NAME, OUTPUT_NAME, ConfigError, ModelConfig
from models.files import sha256

if TYPE_CHECKING:
    import onnx

    from export.equivalence import Images

MANIFEST_FILE = "manifest.json"
ONNX_FILE = "model.onnx"
PLAN_FILE = "model.plan"
SAMPLE_FILE = "sample.npz"

Content = bytes | Path


@dataclass(frozen=True)
class Tensor:
    """`dtype`: numpy's name. `shape`: a free size is a symbol or None."""

    dtype: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class Manifest:
    """`files`: place in the version's folder -> SHA-256; `file`: the place that Triton loads.

    `sample_tolerance`: largest absolute error of an output for the sample; None: only its class counts.
    `about`: the origin, as the stage tells it that wrote the file.
    """

    file: str
    files: Mapping[str, str]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    sample_tolerance: Mapping[str, float | None]
    about: Mapping[str, Any]

    @cached_property
    def config(self) -> ModelConfig | None:
        """None for a network of another origin."""
        described = self.about.get("model_config")
        return None if described is None else ModelConfig.from_json(json.dumps(described))

    @property
    def precision(self) -> str:
        return str(self.about.get("precision", "fp32"))

    @property
    def accuracy(self) -> float | None:
        """The file's test accuracy; the checkpoint's if the file was not measured."""
        accuracy: float | None = self.about.get("test_accuracy", self.about.get("metrics", {}).get("test_accuracy"))
        return accuracy

    def to_json(self) -> bytes:
        """`about` beside the other fields."""
        fields = asdict(self)
        return json.dumps({**fields.pop("about"), **fields}, indent=2).encode()


@dataclass(frozen=True)
class Artifact:
    """`contents`: place -> bytes, or the file that has them."""

    manifest: Manifest
    contents: Mapping[str, Content]

    @property
    def about(self) -> Mapping[str, Any]:
        return self.manifest.about

    @property
    def config(self) -> ModelConfig:
        if self.manifest.config is None:
            raise PublishError(f"{self.manifest.file}: expected a network of this project, found another")
        return self.manifest.config

    @property
    def data(self) -> bytes:
        content = self.contents[self.manifest.file]
        return content if isinstance(content, bytes) else content.read_bytes()

    @property
    def sample(self) -> Sample:
        return Sample.read(self.contents[SAMPLE_FILE])

    def telling(self, **facts: Any) -> Artifact:
        return replace(self, manifest=replace(self.manifest, about={**self.about, **facts}))


def make_artifact(
    contents: Mapping[str, Content],
    sample: Sample,
    tolerance: Mapping[str, float | None],
    tensors: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    about: Mapping[str, Any],
) -> Artifact:
    """The first of `contents` is the file that Triton loads; `tensors`: inputs and outputs."""
    whole = {**contents, SAMPLE_FILE: sample.to_bytes()}
    hashes = {place: sha256(content) for place, content in whole.items()}
    return Artifact(Manifest(next(iter(contents)), hashes, *tensors, tolerance, about), whole)


def classifier_artifact(
    file: str, data: bytes, config: ModelConfig, sample: Sample, about: Mapping[str, Any]
) -> Artifact:
    """Of a network of this project: image uint8 (batch, C, H, W) -> logits float32 (batch, K)."""
    inputs = {INPUT_NAME: Tensor("uint8", ("batch", *config.input_shape))}
    outputs = {OUTPUT_NAME: Tensor("float32", ("batch", config.num_classes))}
    exact = about.get("precision", "fp32") == "fp32"  # below, processors differ
    tolerance = {OUTPUT_NAME: about["tolerance"] if exact else None}
    return make_artifact({file: data}, sample, tolerance, (inputs, outputs), about)


def onnx_artifact(proto: onnx.ModelProto, config: ModelConfig, image: Images, about: Mapping[str, Any]) -> Artifact:
    """Of a graph of this project: `about` is in its metadata_props too; `image` (1, C, H, W) is its sample."""
    from export.equivalence import onnx_classifier

    for key, value in about.items():
        proto.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    data = proto.SerializeToString()
    sample = Sample({INPUT_NAME: image}, {OUTPUT_NAME: onnx_classifier(data)(image)})
    return classifier_artifact(ONNX_FILE, data, config, sample, about)


def read_manifest(path: Path) -> Manifest:
    try:
        manifest = _from_json(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PublishError(f"{path}: expected the manifest of an export, found {reason(error)}") from error
    check_manifest(path, manifest)
    return manifest


def _from_json(held: dict[str, Any]) -> Manifest:
    about = dict(held)
    file, files, inputs, outputs, tolerance = (
        about.pop(name) for name in ("file", "files", "inputs", "outputs", "sample_tolerance")
    )
    return Manifest(file, files, _tensors(inputs), _tensors(outputs), tolerance, about)


def _tensors(held: dict[str, Any]) -> dict[str, Tensor]:
    return {name: Tensor(str(form["dtype"]), tuple(form["shape"])) for name, form in held.items()}


def check_manifest(path: Path, manifest: Manifest) -> None:
    """Raises PublishError for a missing or wrong field that config.pbtxt, `list` or `verify` reads."""
    try:
        _check_files(manifest)
        _check_sample(manifest)
        if manifest.config is not None:
            _check_origin(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise PublishError(f"{path}: expected the manifest of an export, found {reason(error)}") from error


def _check_files(manifest: Manifest) -> None:
    if not isinstance(manifest.file, str):
        raise TypeError(f"file {manifest.file!r}")
    for place, digest in manifest.files.items():
        if not isinstance(digest, str) or Path(place).is_absolute() or ".." in Path(place).parts:
            raise ValueError(f"files {place!r}: {digest!r}")
    if missing := sorted({manifest.file, SAMPLE_FILE} - manifest.files.keys()):
        raise KeyError(missing[0])


def _check_sample(manifest: Manifest) -> None:
    for name in manifest.outputs:
        tolerance = manifest.sample_tolerance[name]
        if tolerance is not None and not 0 <= tolerance < math.inf:  # NaN fails too
            raise ValueError(f"sample_tolerance {name} {tolerance}")


def _check_origin(manifest: Manifest) -> None:
    about, temperature = manifest.about, manifest.about.get("temperature")
    if missing := sorted({"rewrites", "metrics", "checkpoint_sha256"} - about.keys()):
        raise KeyError(missing[0])
    for name, kind in (("checkpoint_sha256", str), ("engine", dict), ("rewrites", list), ("metrics", dict)):
        if not isinstance(about.get(name, kind()), kind):
            raise TypeError(f"{name} {about[name]!r}")
    if not all(isinstance(each, str) for each in about["rewrites"]):
        raise TypeError(f"rewrites {about['rewrites']!r}")
    for name in ("max_abs_error", "tolerance"):
        if not 0 <= about[name] < math.inf:
            raise ValueError(f"{name} {about[name]}")
    if manifest.accuracy is not None and not 0 <= manifest.accuracy <= 1:
        raise ValueError(f"test_accuracy {manifest.accuracy}")
    if temperature is not None and not 0 < temperature < math.inf:
        raise ValueError(f"temperature {temperature}")


def checked(manifest: Manifest, files: Mapping[str, Path]) -> Artifact:
    """Raises PublishError for a file that is missing or has another hash."""
    for place, expected in manifest.files.items():
        try:
            found = sha256(files[place])
        except OSError as error:
            raise PublishError(f"{files[place]}: expected {place}, found {error.strerror}") from error
        if found != expected:
            raise PublishError(f"{files[place]}: expected the SHA-256 {expected}, found {found}")
    return Artifact(manifest, files)


def open_version(folder: Path) -> Artifact:
    """As `read_version`, without reading the contents."""
    manifest = read_manifest(folder / MANIFEST_FILE)
    return Artifact(manifest, {place: folder / place for place in manifest.files})


def read_version(folder: Path) -> Artifact:
    artifact = open_version(folder)
    return checked(artifact.manifest, {place: folder / place for place in artifact.manifest.files})
