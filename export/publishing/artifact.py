"""A version: a file that Triton loads, its weights and sample, and their manifest.

In: contents, a sample and what the stage tells of the file; or a version's folder. Out: an `Artifact`, or PublishError
if contents and manifest disagree.
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
from export.publishing.manifest import (
    Manifest,
    Network,
    Origin,
    Tensor,
    read_manifest,
)
from models.networks.config import INPUT_NAME, OUTPUT_NAME, ModelConfig

if TYPE_CHECKING:
    import onnx

    from export.equivalence import Images

Content = bytes | Path


@dataclass(frozen=True)
class Artifact:
    """`contents`: place -> bytes, or the file that has them."""

    manifest: Manifest
    contents: Mapping[str, Content]

    @property
    def origin(self) -> Origin:
        return self.manifest.origin

    @property
    def network(self) -> Network:
        """Raises PublishError for a network of another origin."""
        if self.origin.network is None:
            raise PublishError(f"{self.manifest.file}: expected a network of this project, found another")
        return self.origin.network

    @property
    def config(self) -> ModelConfig:
        """Raises PublishError for a network of another origin."""
        config = self.network.config
        if not isinstance(config, ModelConfig):
            raise PublishError(f"{self.manifest.file}: expected a network of this project, found another")
        return config

    @property
    def data(self) -> bytes:
        content = self.contents[self.manifest.file]
        return content if isinstance(content, bytes) else content.read_bytes()

    @property
    def path(self) -> Path:
        """The file that Triton loads. Raises TypeError if it is not written yet."""
        content = self.contents[self.manifest.file]
        if isinstance(content, bytes):
            raise TypeError(f"{self.manifest.file}: expected a file, found its bytes")
        return content

    @property
    def sample(self) -> Sample:
        """Raises PublishError."""
        with as_published():
            return Sample.read(self.contents[SAMPLE_FILE])

    def telling(self, facts: Mapping[str, Any] | None = None, **fields: Any) -> Artifact:
        """With more `facts`, and other `fields` of its origin."""
        origin = replace(self.origin, facts={**self.origin.facts, **(facts or {})}, **fields)
        return replace(self, manifest=replace(self.manifest, origin=origin))


def make_artifact(
    contents: Mapping[str, Content],
    sample: Sample,
    tolerance: Mapping[str, float | None],
    tensors: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    origin: Origin,
) -> Artifact:
    """The first of `contents` is the file that Triton loads; `tensors`: inputs and outputs."""
    whole = {**contents, SAMPLE_FILE: sample.to_bytes()}
    hashes = {place: sha256(content) for place, content in whole.items()}
    return Artifact(Manifest(next(iter(contents)), hashes, *tensors, tolerance, origin), whole)


def classifier_artifact(file: str, data: bytes, network: Network, sample: Sample, origin: Origin) -> Artifact:
    """Of a network of this project: image uint8 (batch, C, H, W) -> logits float32 (batch, K)."""
    config = network.config
    inputs = {INPUT_NAME: Tensor("uint8", ("batch", *config.input_shape))}
    outputs = {OUTPUT_NAME: Tensor("float32", ("batch", config.num_classes))}
    exact = origin.precision == "fp32"  # below, processors differ
    tolerance = {OUTPUT_NAME: network.tolerance if exact else None}
    return make_artifact({file: data}, sample, tolerance, (inputs, outputs), replace(origin, network=network))


def onnx_artifact(proto: onnx.ModelProto, image: Images, network: Network, origin: Origin) -> Artifact:
    """Of a graph of this project: its origin is in its metadata_props too; `image` (1, C, H, W) is its sample."""
    from export.equivalence import onnx_classifier

    for key, value in replace(origin, network=network).to_json().items():
        proto.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    data = proto.SerializeToString()
    sample = Sample({INPUT_NAME: image}, {OUTPUT_NAME: onnx_classifier(data)(image)})
    return classifier_artifact(ONNX_FILE, data, network, sample, origin)


def checked(manifest: Manifest, files: Mapping[str, Path]) -> Artifact:
    """Raises PublishError for a file that is missing or has another hash."""
    with as_published():
        for place, expected in manifest.files.items():
            check_hash(files[place], expected, place)
    return Artifact(manifest, files)


def open_version(folder: Path) -> Artifact:
    """As `read_version`, without reading the contents."""
    manifest = read_manifest(folder / MANIFEST_FILE)
    return Artifact(manifest, {place: folder / place for place in manifest.files})


def read_version(folder: Path) -> Artifact:
    artifact = open_version(folder)
    return checked(artifact.manifest, {place: folder / place for place in artifact.manifest.files})
