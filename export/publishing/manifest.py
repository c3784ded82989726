"""manifest.json: the facts about a version, as typed dataclasses.

In: the fields, from the stage that wrote a file; or the JSON. Out: a complete `Manifest`; PublishError for other JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common import repository
from common.files import reason
from common.repository import SAMPLE_FILE, VersionFiles, is_axes_by_name
from export.errors import PublishError, as_published
from export.publishing.picture_config import OTHER, PictureConfig, picture_config
from models.networks.config import ModelConfig

OPTIONAL = ("test_accuracy", "packed", "joined_rows", "joined_lengths", "never_empty")


@dataclass(frozen=True)
class Tensor:
    """An input or output. `dtype`: numpy's name. `shape`: a free dimension is a symbol or None."""

    dtype: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class Network:
    """A network that clients can ask for classes: of this project, or a picture network of another origin.

    `max_abs_error`: of the float32 file's logits against the trained network's, at most `tolerance`. `metrics`: of the
    training. `temperature` divides the logits, `evidence_limit` rejects a picture (models/evaluation/rejection.py);
    None: not calibrated. Raises TypeError or ValueError for other values.
    """

    config: ModelConfig | PictureConfig
    checkpoint_sha256: str
    metrics: Mapping[str, Any]
    max_abs_error: float
    tolerance: float
    temperature: float | None = None
    evidence_limit: float | None = None

    def __post_init__(self) -> None:
        _check_type("checkpoint_sha256", self.checkpoint_sha256, str)
        _check_type("metrics", self.metrics, dict)
        for name in ("max_abs_error", "tolerance"):
            if not 0 <= getattr(self, name) < math.inf:  # NaN fails too
                raise ValueError(f"{name} {getattr(self, name)}")
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature {self.temperature}")
        if self.evidence_limit is not None and not math.isfinite(self.evidence_limit):
            raise ValueError(f"evidence_limit {self.evidence_limit}")
        _check_accuracy(self.metrics.get("test_accuracy"))

    def to_json(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if name != "config" and value is not None}
        return {"model_config": json.loads(self.config.to_json()), **fields}


@dataclass(frozen=True)
class Profile:
    """Smallest and largest batch size that a TensorRT engine takes, and the size that it is optimised for."""

    min: int
    opt: int
    max: int


@dataclass(frozen=True)
class Plan:
    """How a TensorRT engine was built. `max_abs_error`: of its logits against those of the ONNX file."""

    profile: Profile
    max_abs_error: float
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**self.facts, "profile": asdict(self.profile), "max_abs_error": self.max_abs_error}


@dataclass(frozen=True)
class Origin:
    """Where a file comes from: what the stage that wrote it knows.

    `rewrites`: the passes that changed the graph. `test_accuracy`: of the file itself; None: not measured. `network`:
    None if clients cannot ask the network for classes. `engine`: None for an ONNX file. `packed`: the mask by which the
    file leaves padding tokens out (`rewrite --packed`). `joined_rows`: whether a server may join requests into a batch;
    None: as the names of the axes say. `joined_lengths`: how it joins requests of different lengths, as in
    config.pbtxt. `never_empty`: input -> axes of which a request must not have size 0. `facts`: for people; no program
    reads them. Raises TypeError or ValueError for other values.
    """

    rewrites: tuple[str, ...] = ()
    precision: str = "fp32"
    test_accuracy: float | None = None
    network: Network | None = None
    engine: Plan | None = None
    packed: str | None = None
    joined_rows: bool | None = None
    joined_lengths: str | None = None
    never_empty: Mapping[str, Sequence[int]] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(isinstance(name, str) for name in self.rewrites):
            raise TypeError(f"rewrites {[*self.rewrites]!r}")
        _check_type("precision", self.precision, str)
        for name in ("packed", "joined_lengths"):
            if getattr(self, name) is not None:
                _check_type(name, getattr(self, name), str)
        if self.joined_rows is not None:
            _check_type("joined_rows", self.joined_rows, bool)
        if self.never_empty is not None and not is_axes_by_name(self.never_empty):
            raise TypeError(f"never_empty {self.never_empty!r}")
        _check_accuracy(self.test_accuracy)

    @property
    def accuracy(self) -> float | None:
        """The file's test accuracy; the checkpoint's if the file was not measured."""
        if self.test_accuracy is not None or self.network is None:
            return self.test_accuracy
        trained: float | None = self.network.metrics.get("test_accuracy")
        return trained

    def to_json(self) -> dict[str, Any]:
        """A flat object: the facts, the fields of this class that are set, and the network's fields."""
        fields: dict[str, Any] = {**self.facts, "rewrites": [*self.rewrites], "precision": self.precision}
        fields |= {name: value for name in OPTIONAL if (value := getattr(self, name)) is not None}
        if self.network:
            fields |= self.network.to_json()
        if self.engine:
            fields["engine"] = self.engine.to_json()
        return fields


@dataclass(frozen=True)
class Manifest:
    """All facts about a version. `files`: path in its folder -> SHA-256. `file`: the path that Triton loads.

    `sample_tolerance`: output -> allowed absolute error for the sample; None: only the class must be the same. Raises
    KeyError, TypeError or ValueError for other values.
    """

    file: str
    files: Mapping[str, str]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    sample_tolerance: Mapping[str, float | None]
    origin: Origin

    def __post_init__(self) -> None:
        VersionFiles.of({"file": self.file, "files": self.files})
        if SAMPLE_FILE not in self.files:
            raise KeyError(SAMPLE_FILE)
        for name in self.outputs:
            tolerance = self.sample_tolerance[name]
            if tolerance is not None and not 0 <= tolerance < math.inf:  # NaN fails too
                raise ValueError(f"sample_tolerance {name} {tolerance}")

    @property
    def config(self) -> ModelConfig | PictureConfig | None:
        """What clients need to know of the network; None if they cannot ask it for classes."""
        return self.origin.network.config if self.origin.network else None

    def to_json(self) -> bytes:
        """A flat JSON object: the fields of the origin, then the others."""
        fields = {name: value for name, value in asdict(self).items() if name != "origin"}
        return json.dumps({**self.origin.to_json(), **fields}, indent=2).encode()


def read_manifest(path: Path) -> Manifest:
    """Raises PublishError if a field is missing or wrong that config.pbtxt, `list` or `verify` reads."""
    with as_published():
        fields = repository.read_manifest(path)
    try:
        return _manifest(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PublishError(f"{path}: expected the manifest of an export, found {reason(error)}") from error


def _manifest(fields: dict[str, Any]) -> Manifest:
    fields = dict(fields)
    file, files, inputs, outputs, tolerance = (
        fields.pop(name) for name in ("file", "files", "inputs", "outputs", "sample_tolerance")
    )
    return Manifest(file, files, _tensors(inputs), _tensors(outputs), tolerance, _take_origin(fields))


def _tensors(tensors: dict[str, Any]) -> dict[str, Tensor]:
    return {name: Tensor(str(tensor["dtype"]), tuple(tensor["shape"])) for name, tensor in tensors.items()}


def _take_origin(fields: dict[str, Any]) -> Origin:
    """Removes the fields that it knows from `fields`; the others are facts. Older exports do not name float32."""
    network = _take_network(fields) if fields.get("model_config") is not None else None
    engine = _plan(fields.pop("engine")) if "engine" in fields else None
    _check_type("rewrites", rewrites := fields.pop("rewrites") if network else fields.pop("rewrites", []), list)
    precision, optional = fields.pop("precision", "fp32"), {name: fields.pop(name, None) for name in OPTIONAL}
    return Origin(tuple(rewrites), precision, **optional, network=network, engine=engine, facts=fields)


def _take_network(fields: dict[str, Any]) -> Network:
    """Removes the network's fields from `fields`."""
    described = fields.pop("model_config")
    other = isinstance(described, dict) and described.get("model") == OTHER
    config = picture_config(described) if other else ModelConfig.from_json(json.dumps(described))
    names = ("checkpoint_sha256", "metrics", "max_abs_error", "tolerance")
    calibration = {name: fields.pop(name, None) for name in ("temperature", "evidence_limit")}
    return Network(config, **{name: fields.pop(name) for name in names}, **calibration)


def _plan(engine: Any) -> Plan:
    _check_type("engine", engine, dict)
    facts = dict(engine)
    profile = Profile(**facts.pop("profile"))
    return Plan(profile, facts.pop("max_abs_error"), facts)


def _check_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} {value!r}")


def _check_accuracy(value: float | None) -> None:
    if value is not None and not 0 <= value <= 1:
        raise ValueError(f"test_accuracy {value}")
