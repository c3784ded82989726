"""manifest.json: what is known of a version, typed.

In: what a stage tells of its file, or the JSON beside it. Out: a complete `Manifest`; PublishError for other JSON.
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
from common.repository import SAMPLE_FILE, Listed, is_axes
from export.errors import PublishError, as_published
from export.publishing.picture_config import OTHER, PictureConfig, picture_config
from models.networks.config import ModelConfig

# Fields of an Origin that a manifest may lack.
TOLD = ("test_accuracy", "packed", "joined_rows", "joined_lengths", "never_empty")


@dataclass(frozen=True)
class Tensor:
    """`dtype`: numpy's name. `shape`: a free size is a symbol or None."""

    dtype: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class Network:
    """A trained network of this project, or one of pictures that clients ask alike.

    `max_abs_error`: of the float32 file's logits beside the trained network's, at most `tolerance`. `temperature`
    divides the logits, `evidence_limit` rejects a picture (models/evaluation/rejection.py); None: not calibrated.
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
    """Batch sizes that an engine takes, and the size that it is made for."""

    min: int
    opt: int
    max: int


@dataclass(frozen=True)
class Plan:
    """How a TensorRT engine was built. `max_abs_error`: of its logits beside those of the ONNX file."""

    profile: Profile
    max_abs_error: float
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**self.facts, "profile": asdict(self.profile), "max_abs_error": self.max_abs_error}


@dataclass(frozen=True)
class Origin:
    """What the stage that wrote a file tells of it.

    `test_accuracy`: of the file itself; None: not measured. `network`: None for a network of another origin. `engine`:
    None for an ONNX file. `packed`: the input by which `rewrite --packed` leaves tokens out. `joined_rows`: whether
    requests run together; None: as the names of the axes say. `joined_lengths`: how a server joins requests of
    different lengths, as in config.pbtxt. `never_empty`: input -> axes that a server must not leave empty. `facts`: for
    people; no program reads them.
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
        if not all(isinstance(each, str) for each in self.rewrites):
            raise TypeError(f"rewrites {[*self.rewrites]!r}")
        _check_type("precision", self.precision, str)
        for name in ("packed", "joined_lengths"):
            if getattr(self, name) is not None:
                _check_type(name, getattr(self, name), str)
        if self.joined_rows is not None:
            _check_type("joined_rows", self.joined_rows, bool)
        if self.never_empty is not None and not is_axes(self.never_empty):
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
        """Side by side: free facts, the network's fields and the file's own."""
        held: dict[str, Any] = {**self.facts, "rewrites": [*self.rewrites], "precision": self.precision}
        held |= {name: value for name in TOLD if (value := getattr(self, name)) is not None}
        if self.network:
            held |= self.network.to_json()
        if self.engine:
            held["engine"] = self.engine.to_json()
        return held


@dataclass(frozen=True)
class Manifest:
    """`files`: place in the version's folder -> SHA-256; `file`: the place that Triton loads.

    `sample_tolerance`: largest absolute error of an output for the sample; None: only its class counts.
    """

    file: str
    files: Mapping[str, str]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    sample_tolerance: Mapping[str, float | None]
    origin: Origin

    def __post_init__(self) -> None:
        Listed.of({"file": self.file, "files": self.files})
        if SAMPLE_FILE not in self.files:
            raise KeyError(SAMPLE_FILE)
        for name in self.outputs:
            tolerance = self.sample_tolerance[name]
            if tolerance is not None and not 0 <= tolerance < math.inf:  # NaN fails too
                raise ValueError(f"sample_tolerance {name} {tolerance}")

    @property
    def config(self) -> ModelConfig | PictureConfig | None:
        """None for a network of another origin that clients cannot ask for classes."""
        return self.origin.network.config if self.origin.network else None

    def to_json(self) -> bytes:
        """The origin beside the other fields."""
        fields = {name: value for name, value in asdict(self).items() if name != "origin"}
        return json.dumps({**self.origin.to_json(), **fields}, indent=2).encode()


def read_manifest(path: Path) -> Manifest:
    """Raises PublishError for a missing or wrong field that config.pbtxt, `list` or `verify` reads."""
    with as_published():
        held = repository.read_manifest(path)
    try:
        return _manifest(held)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PublishError(f"{path}: expected the manifest of an export, found {reason(error)}") from error


def _manifest(held: dict[str, Any]) -> Manifest:
    rest = dict(held)
    file, files, inputs, outputs, tolerance = (
        rest.pop(name) for name in ("file", "files", "inputs", "outputs", "sample_tolerance")
    )
    return Manifest(file, files, _tensors(inputs), _tensors(outputs), tolerance, _origin(rest))


def _tensors(held: dict[str, Any]) -> dict[str, Tensor]:
    return {name: Tensor(str(form["dtype"]), tuple(form["shape"])) for name, form in held.items()}


def _origin(held: dict[str, Any]) -> Origin:
    """Takes the fields that it knows out of `held`; the others are facts. Older exports do not name float32."""
    network = _network(held) if held.get("model_config") is not None else None
    engine = _plan(held.pop("engine")) if "engine" in held else None
    _check_type("rewrites", rewrites := held.pop("rewrites") if network else held.pop("rewrites", []), list)
    told = {name: held.pop(name, None) for name in TOLD}
    return Origin(tuple(rewrites), held.pop("precision", "fp32"), **told, network=network, engine=engine, facts=held)


def _network(held: dict[str, Any]) -> Network:
    described = held.pop("model_config")
    other = isinstance(described, dict) and described.get("model") == OTHER
    config = picture_config(described) if other else ModelConfig.from_json(json.dumps(described))
    names = ("checkpoint_sha256", "metrics", "max_abs_error", "tolerance")
    fitted = {name: held.pop(name, None) for name in ("temperature", "evidence_limit")}
    return Network(config, **{name: held.pop(name) for name in names}, **fitted)


def _plan(held: Any) -> Plan:
    _check_type("engine", held, dict)
    facts = dict(held)
    profile = Profile(**facts.pop("profile"))
    return Plan(profile, facts.pop("max_abs_error"), facts)


def _check_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} {value!r}")


def _check_accuracy(value: float | None) -> None:
    if value is not None and not 0 <= value <= 1:
        raise ValueError(f"test_accuracy {value}")
