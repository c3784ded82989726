"""Compares config.pbtxt with the loaded model, as strictly as Triton's native backends.

In: the configuration as Triton's JSON, the engine's tensors. Out: nothing, or ModelRefused. What loads here must load
in a native server; strings, scalars, ragged batches and sequences are refused only here.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]

UNSUPPORTED = ("sequence_batching", "batch_input", "batch_output", "model_operations")


class ModelRefused(ValueError):
    pass


@dataclass(frozen=True)
class Tensor:
    """`data_type` as in config.pbtxt, else the engine's name; `shape` with the batch dimension, -1: open."""

    data_type: str
    shape: tuple[int, ...]
    optional: bool = False


def parameter(config: Config, key: str) -> str | None:
    text: str | None = config.get("parameters", {}).get(key, {}).get("string_value")
    return text


def check_features(config: Config) -> None:
    for feature in UNSUPPORTED:
        if config.get(feature):
            raise ModelRefused(f"config.pbtxt asks for {feature}, which this server's backend does not have")
    accelerators = config.get("optimization", {}).get("execution_accelerators", {})
    for accelerator in accelerators.get("cpu_execution_accelerator", []):
        raise ModelRefused(f"unknown execution accelerator '{accelerator['name']}' is requested")


def check_tensors(
    config: Config, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], ragged: Container[str] = ()
) -> None:
    """Raises ModelRefused. `ragged`: inputs that our backend has declared ragged, for requests of different lengths."""
    wanted = [entry["name"] for entry in config["input"] if not entry.get("optional")]
    needed = [name for name, tensor in inputs.items() if not tensor.optional]
    if len(wanted) != len(needed):
        raise ModelRefused(
            f"config.pbtxt has {len(wanted)} inputs ({_listed(wanted)}),"
            f" the model has {len(needed)} ({_listed(needed)})"
        )
    batched = config["max_batch_size"] > 0
    for entry in config["input"]:
        strange = entry.get("allow_ragged_batch") and entry["name"] not in ragged
        if strange or (entry.get("optional") and batched):
            raise ModelRefused(f"input '{entry['name']}' is ragged, or optional in a batch: not supported")
        _check_tensor("input", entry, inputs, batched)
    for entry in config["output"]:
        _check_tensor("output", entry, outputs, batched)


def _check_tensor(kind: str, entry: Config, provided: Mapping[str, Tensor], batched: bool) -> None:
    name = entry["name"]
    if name not in provided:
        raise ModelRefused(f"config.pbtxt has {kind} '{name}', the model has {_listed(provided)}")
    found, shape = provided[name], list(provided[name].shape)
    if entry["data_type"] != found.data_type:
        raise ModelRefused(f"{kind} '{name}': config.pbtxt says {entry['data_type']}, the model has {found.data_type}")
    declared = [int(size) for size in entry.get("reshape", {"shape": entry["dims"]}).get("shape", [])]
    if batched:
        declared.insert(0, -1)
        if shape[:1] != [-1]:
            raise ModelRefused(
                f"{kind} '{name}': max_batch_size above 0 needs a dynamic first dimension, the model has {shape}"
            )
    # Only an input may fix a dimension that the model leaves open.
    accepted = [want if have == -1 and kind == "input" else have for have, want in zip(shape, declared, strict=False)]
    if len(shape) != len(declared) or accepted != declared:
        batch = " (with the batch dimension)" if batched else ""
        raise ModelRefused(f"{kind} '{name}': config.pbtxt says shape {declared}{batch}, the model has {shape}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "none"
