"""A version: the file that Triton loads, its weights, a sample of its answers, and the manifest of all these.

In: contents, a sample and the file's origin; or a version's folder. Out: an `Artifact`; PublishError if contents and
manifest disagree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.files import sha256
from common.repository import MANIFEST_FILE, ONNX_FILE, SAMPLE_FILE, check_hash
from common.sample import Sample
from export.errors import PublishError, as_published
from export.publishing.manifest import Manifest, Network, Origin, Tensor, read_manifest
from models.networks.config import INPUT_NAME, OUTPUT_NAME, ModelConfig

if TYPE_CHECKING:
    import onnx

    from export.compare_logits import Images

Content = bytes | Path


@dataclass(frozen=True)
class Artifact:
    """What is published as a version. `contents`: path in the version's folder -> bytes, or the file that has them."""

    manifest: Manifest
    contents: Mapping[str, Content]

    @property
    def origin(self) -> Origin:
        return self.manifest.origin

    @property
    def network(self) -> Network:
        """Raises PublishError for a network that this project has not trained."""
        if self.origin.network is None:
            raise PublishError(f"{self.manifest.file}: expected a network of this project, found another")
        return self.origin.network

    @property
    def config(self) -> ModelConfig:
        """Raises PublishError for a network that this project has not trained."""
        if not isinstance(config := self.network.config, ModelConfig):
            raise PublishError(f"{self.manifest.file}: expected a network of this project, found another")
        return config

    @property
    def data(self) -> bytes:
        """The bytes of the file that Triton loads."""
        content = self.contents[self.manifest.file]
        return content if isinstance(content, bytes) else content.read_bytes()

    @property
    def path(self) -> Path:
        """The path of the file that Triton loads. Raises TypeError if the artifact has only its bytes."""
        content = self.contents[self.manifest.file]
        if isinstance(content, bytes):
            raise TypeError(f"{self.manifest.file}: expected a file, found its bytes")
        return content

    @property
    def sample(self) -> Sample:
        """Inputs, and the file's answers to them. Raises PublishError for a damaged sample."""
        with as_published():
            return Sample.read(self.contents[SAMPLE_FILE])

    def with_origin(self, facts: Mapping[str, Any] | None = None, **fields: Any) -> Artifact:
        """A copy whose origin has additional `facts`, and new values of `fields`."""
        origin = replace(self.origin, facts={**self.origin.facts, **(facts or {})}, **fields)
        return replace(self, manifest=replace(self.manifest, origin=origin))


def make_artifact(
    contents: Mapping[str, Content],
    sample: Sample,
    tolerance: Mapping[str, float | None],
    tensors: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    origin: Origin,
) -> Artifact:
    """Adds sample and manifest to `contents`, whose first file is the file that Triton loads.

    `tolerance`: absolute, of each output for the sample. `tensors`: inputs and outputs.
    """
    with_sample = {**contents, SAMPLE_FILE: sample.to_bytes()}
    hashes = {place: sha256(content) for place, content in with_sample.items()}
    return Artifact(Manifest(next(iter(contents)), hashes, *tensors, tolerance, origin), with_sample)


def classifier_artifact(file: str, data: bytes, network: Network, sample: Sample, origin: Origin) -> Artifact:
    """The artifact of a classifier: image uint8 (batch, C, H, W) -> logits float32 (batch, num_classes).

    `file`, `data`: name and bytes of the file that Triton loads.
    """
    config = network.config
    inputs = {INPUT_NAME: Tensor("uint8", ("batch", *config.input_shape))}
    outputs = {OUTPUT_NAME: Tensor("float32", ("batch", config.num_classes))}
    exact = origin.precision == "fp32"  # lower precisions give other logits on other processors
    tolerance = {OUTPUT_NAME: network.tolerance if exact else None}
    return make_artifact({file: data}, sample, tolerance, (inputs, outputs), replace(origin, network=network))


def onnx_artifact(proto: onnx.ModelProto, image: Images, network: Network, origin: Origin) -> Artifact:
    """The artifact of a classifier's ONNX graph, whose metadata_props get the fields of the origin.

    `image`: uint8 (1, C, H, W), the input of the sample.
    """
    from export.compare_logits import onnx_classifier

    for key, value in replace(origin, network=network).to_json().items():
        proto.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    data = proto.SerializeToString()
    sample = Sample({INPUT_NAME: image}, {OUTPUT_NAME: onnx_classifier(data)(image)})
    return classifier_artifact(ONNX_FILE, data, network, sample, origin)


def artifact_of_files(manifest: Manifest, files: Mapping[str, Path]) -> Artifact:
    """`files`: path in a version's folder -> the file. Raises PublishError if a file is missing or has another hash."""
    with as_published():
        for place, expected in manifest.files.items():
            check_hash(files[place], expected, place)
    return Artifact(manifest, files)


def open_version(folder: Path) -> Artifact:
    """The version in a folder; only its manifest is read and checked. Raises PublishError."""
    manifest = read_manifest(folder / MANIFEST_FILE)
    return Artifact(manifest, {place: folder / place for place in manifest.files})


def read_version(folder: Path) -> Artifact:
    """The version in a folder, whose files have the hashes of its manifest. Raises PublishError."""
    manifest = read_manifest(folder / MANIFEST_FILE)
    return artifact_of_files(manifest, {place: folder / place for place in manifest.files})
