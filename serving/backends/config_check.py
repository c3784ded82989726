"""Checks config.pbtxt against the loaded model, as strictly as Triton's native backends.

In: the configuration as Triton's JSON, the engine's tensors. Out: nothing, or ModelRefused. A model that loads here
must load in a native server, too. The converse does not hold: only this backend refuses strings, scalars, ragged
batches and sequences.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]

UNSUPPORTED = ("sequence_batching", "batch_input", "batch_output", "model_operations")


class ModelRefused(ValueError):
    """The model cannot be loaded. Triton shows the message."""


@dataclass(frozen=True)
class Tensor:
    """An input or output of the loaded model.

    data_type: as config.pbtxt names it; the engine's name for a type that Triton lacks.
    shape:     with the batch dimension; -1 for a free size.
    optional:  an input that has a default value.
    """

    data_type: str
    shape: tuple[int, ...]
    optional: bool = False


def parameter(config: Config, key: str) -> str | None:
    """The value of a parameter of config.pbtxt, or None."""
    text: str | None = config.get("parameters", {}).get(key, {}).get("string_value")
    return text


def check_features(config: Config) -> None:
    """Raises ModelRefused for features of Triton that this backend lacks."""
    for feature in UNSUPPORTED:
        if config.get(feature):
            raise ModelRefused(f"config.pbtxt asks for {feature}, which this server's backend does not have")
    accelerators = config.get("optimization", {}).get("execution_accelerators", {})
    for accelerator in accelerators.get("cpu_execution_accelerator", []):
        raise ModelRefused(f"unknown execution accelerator '{accelerator['name']}' is requested")


def check_tensors(
    config: Config, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], ragged: Container[str] = ()
) -> None:
    """Raises ModelRefused unless config.pbtxt declares the tensors that the loaded model has.

    ragged: inputs that our backend itself declared ragged, for requests of different lengths.
    """
    declared = [entry["name"] for entry in config["input"] if not entry.get("optional")]
    required = [name for name, tensor in inputs.items() if not tensor.optional]
    if len(declared) != len(required):
        raise ModelRefused(
            f"config.pbtxt has {len(declared)} inputs ({_listed(declared)}),"
            f" the model has {len(required)} ({_listed(required)})"
        )
    batched = config["max_batch_size"] > 0
    for entry in config["input"]:
        unsupported = entry.get("allow_ragged_batch") and entry["name"] not in ragged
        if unsupported or (entry.get("optional") and batched):
            raise ModelRefused(f"input '{entry['name']}' is ragged, or optional in a batch: not supported")
        _check_tensor("input", entry, inputs, batched)
    for entry in config["output"]:
        _check_tensor("output", entry, outputs, batched)


def _check_tensor(kind: str, entry: Config, provided: Mapping[str, Tensor], batched: bool) -> None:
    name = entry["name"]
    if name not in provided:
        raise ModelRefused(f"config.pbtxt has {kind} '{name}', the model has {_listed(provided)}")
    tensor, shape = provided[name], list(provided[name].shape)
    if entry["data_type"] != tensor.data_type:
        raise ModelRefused(f"{kind} '{name}': config.pbtxt says {entry['data_type']}, the model has {tensor.data_type}")
    declared = [int(size) for size in entry.get("reshape", {"shape": entry["dims"]}).get("shape", [])]
    if batched:
        declared.insert(0, -1)
        if shape[:1] != [-1]:
            raise ModelRefused(
                f"{kind} '{name}': max_batch_size above 0 needs a dynamic first dimension, the model has {shape}"
            )
    # Only an input may fix a dimension that is free in the model.
    sizes = zip(shape, declared, strict=False)
    accepted = [fixed if size == -1 and kind == "input" else size for size, fixed in sizes]
    if len(shape) != len(declared) or accepted != declared:
        batch = " (with the batch dimension)" if batched else ""
        raise ModelRefused(f"{kind} '{name}': config.pbtxt says shape {declared}{batch}, the model has {shape}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "none"
