"""The question for a served version, and the judgement of its answer.

In: the version's configuration and, if the files are at hand, its folder with sample.npz and manifest.json, as
export/publishing/ writes them. Out: a `Question`; right, wrong or not compared.

A version without a sample is asked another version's: it must answer in numbers. Without any it is asked zeros.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from common.repository import MANIFEST_FILE, SAMPLE_FILE, Damaged, read_manifest, versions
from common.sample import Sample

Array = NDArray[np.generic]

DTYPES = {"BOOL": "?", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
DTYPES |= {f"{sign}INT{size}": f"<{sign.lower() or 'i'}{size // 8}" for sign in ("", "U") for size in (8, 16, 32, 64)}
BYTES = {"BF16": 2, "STRING": 4}  # a string's length
# Of a float32 logit of this project: TF32 moves a logit of 10 by up to 0.005.
LOGIT_TOLERANCE = 0.01
# Of an output's largest number: in a batch with others a dynamically quantised network moved by 0.006.
SHARED_BATCH_TOLERANCE = 0.02

Judged = tuple[Literal["right", "wrong", "not compared"], float | None, str]  # state, largest error, reason
UNREADABLE = (Damaged, ValueError, LookupError, TypeError, AttributeError)


@dataclass(frozen=True)
class Expected:
    """Of an output. `values` None: any finite numbers. `tolerance` None: only the class counts."""

    values: Array | None = None
    tolerance: float | None = None


@dataclass(frozen=True)
class Question:
    """`inputs` None: zeros. `expected`: by output."""

    inputs: Mapping[str, Array] | None
    expected: Mapping[str, Expected]

    @property
    def compares(self) -> bool:
        return any(each.values is not None for each in self.expected.values())

    def asked_of_another(self) -> Question:
        """Its numbers are not this version's, but where they are finite this version's must be."""
        finite = [
            name for name, each in self.expected.items() if each.values is not None and np.isfinite(each.values).all()
        ]
        return Question(self.inputs, dict.fromkeys(finite, Expected()))


def question(config: Mapping[str, Any], version: str, model_dir: Path | None) -> Question:
    """`config`: Triton's, as JSON; `model_dir`: the model's folder. Raises what foreign JSON does."""
    if model_dir and (own := _stored_beside(config, model_dir / version)):
        return own
    stored = _stored_in(config, version)
    if model_dir and not stored.compares:
        others = (_stored_beside(config, model_dir / number) for number in _others(model_dir, version))
        if other := next(filter(None, others), None):
            return other.asked_of_another()
    return stored


def _others(model_dir: Path, version: str) -> Iterator[str]:
    """Newest first."""
    with suppress(OSError):
        yield from (str(number) for number in reversed(versions(model_dir)) if str(number) != version)


def _stored_beside(config: Mapping[str, Any], folder: Path) -> Question | None:
    """None without a sample that fits the model."""
    try:
        return _read(config, folder)
    except UNREADABLE:
        return None


def _read(config: Mapping[str, Any], folder: Path) -> Question | None:
    manifest, sample = read_manifest(folder / MANIFEST_FILE), Sample.read(folder / SAMPLE_FILE)
    rows = slice(config.get("max_batch_size") or None)
    inputs = {name: array[rows] for name, array in sample.inputs.items()}
    served = {each["name"] for each in config["output"]}
    expected = {
        name: Expected(array[rows], _tolerance(manifest, config, name, array[rows]))
        for name, array in sample.outputs.items()
        if name in served
    }
    return Question(inputs, expected) if inputs and expected else None


def _tolerance(manifest: Mapping[str, Any], config: Mapping[str, Any], name: str, values: Array) -> float | None:
    """The manifest's belongs to the file alone; in a server a batch holds other requests too."""
    given, own = manifest["sample_tolerance"][name], "model_config" in manifest
    if given is None or (own and "HINT_BF16" in config.get("parameters", {})):
        return None
    if own:
        return max(float(given), LOGIT_TOLERANCE)
    numbers = np.abs(values.astype(np.float64))
    return max(float(given), SHARED_BATCH_TOLERANCE * float(numbers[np.isfinite(numbers)].max(initial=0.0)))


def _stored_in(config: Mapping[str, Any], version: str) -> Question:
    """Of the parameter `probe`, which has an image and the logits of some versions."""
    stored = json.loads(config.get("parameters", {}).get("probe", {}).get("string_value", "{}"))
    if stored == {}:
        return Question(None, {})
    answer = stored["answers"].get(version)
    packed = (answer or {}).get("image", stored["image"])
    given, output = config["input"][0], config["output"][0]["name"]
    image = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.uint8).reshape(_shape(config, given))
    expected = Expected(np.array([answer["logits"]], np.float32), answer["tolerance"]) if answer else Expected()
    return Question({given["name"]: image}, {output: expected})


def _shape(config: Mapping[str, Any], given: Mapping[str, Any]) -> list[int]:
    """Of one row."""
    sizes = [max(1, int(size)) for size in given["dims"]]
    return [1, *sizes] if config.get("max_batch_size", 0) > 0 else sizes


def request(config: Mapping[str, Any], inputs: Mapping[str, Array] | None) -> tuple[bytes, bytes]:
    """JSON and binary part."""
    tensors, contents = [], []
    for each in config["input"]:
        if inputs is not None and each["name"] not in inputs and each.get("optional"):
            continue
        kind = each["data_type"].removeprefix("TYPE_")
        shape, content = _zeros(config, each, kind) if inputs is None else _content(config, inputs[each["name"]])
        datatype = "BYTES" if kind == "STRING" else kind
        binary = {"binary_data_size": len(content)}
        tensors.append({"name": each["name"], "shape": shape, "datatype": datatype, "parameters": binary})
        contents.append(content)
    header = {"inputs": tensors, "parameters": {"binary_data_output": True}}
    return json.dumps(header).encode(), b"".join(contents)


def _zeros(config: Mapping[str, Any], given: Mapping[str, Any], kind: str) -> tuple[list[int], bytes]:
    shape = _shape(config, given)
    return shape, bytes(prod(shape) * (BYTES.get(kind) or np.dtype(DTYPES[kind]).itemsize))


def _content(config: Mapping[str, Any], array: Array) -> tuple[list[int], bytes]:
    """A number for each row has the size 1 in a server."""
    batch = 1 if config.get("max_batch_size", 0) > 0 else 0
    return [*array.shape[:batch], *(array.shape[batch:] or [1])], array.tobytes()


def outputs(answer: bytes, header_bytes: int) -> dict[str, Array]:
    """Of Triton's answer with binary data: the numbers of each output, in one row; no text."""
    found, start = {}, header_bytes
    for each in json.loads(answer[:header_bytes])["outputs"]:
        size = each["parameters"]["binary_data_size"]
        if each["datatype"] in DTYPES:
            count = prod(each["shape"])
            found[each["name"]] = np.frombuffer(answer[start : start + size], DTYPES[each["datatype"]], count)
        start += size
    return found


def judged(expected: Mapping[str, Expected], found: Mapping[str, Array]) -> Judged:
    """Raises LookupError and ValueError for missing outputs and numbers."""
    worst = 0.0
    for name, each in expected.items():
        if each.values is None:
            if not np.isfinite(found[name].astype(np.float64)).all():
                return "wrong", None, f"expected finite numbers in {name}, found NaN or infinity"
            continue
        error = _largest_error(name, each.values, found[name])
        if not isfinite(error):
            return "wrong", None, f"expected the stored {name}, found NaN or infinity"
        if not (_same_class(each.values, found[name]) if each.tolerance is None else error <= each.tolerance):
            return "wrong", error, f"expected the stored {name}, found an error of {error:g}"
        worst = max(worst, error)
    if any(each.values is not None for each in expected.values()):
        return "right", worst, ""
    return "not compared", None, "no sample of this version"


def _largest_error(name: str, expected: Array, found: Array) -> float:
    """NaN or infinity unless the same numbers are finite in both."""
    if expected.size != found.size:
        raise ValueError(f"{found.size} numbers in {name} for {expected.size}")
    wanted, numbers = expected.astype(np.float64).ravel(), found.astype(np.float64)
    same = (wanted == numbers) | (np.isnan(wanted) & np.isnan(numbers))
    return float(np.abs(wanted[~same] - numbers[~same]).max(initial=0.0))


def _same_class(expected: Array, found: Array) -> bool:
    return bool((expected.argmax(-1) == found.reshape(expected.shape).argmax(-1)).all())
