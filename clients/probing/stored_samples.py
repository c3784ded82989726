"""Finds the question that a probe asks a served version, and judges the answer.

In: the version's configuration and, if the files are at hand, its folder with sample.npz and manifest.json, as
export/publishing/ writes them. Out: a `Question`; a judgement: right, wrong or not compared.

A version without a sample is asked another version's sample, and its answer need only be finite. If no version has a
sample, zeros are asked.
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
BYTES = {"BF16": 2, "STRING": 4}  # of an element; an empty string is its length in 4 bytes
# For logits of this project's models: TF32 moves a logit of 10 by up to 0.005.
LOGIT_TOLERANCE = 0.01
# Share of an output's largest number: a dynamically quantised network, in a batch with other requests, moved by 0.006.
SHARED_BATCH_TOLERANCE = 0.02

Judged = tuple[Literal["right", "wrong", "not compared"], float | None, str]  # state, largest error, reason
UNREADABLE = (Damaged, ValueError, LookupError, TypeError, AttributeError)


@dataclass(frozen=True)
class Expected:
    """What an output must be. `values` None: any finite numbers; absolute `tolerance` None: only the class counts."""

    values: Array | None = None
    tolerance: float | None = None


@dataclass(frozen=True)
class Question:
    """`inputs` and `expected` by tensor; `inputs` None: zeros are sent."""

    inputs: Mapping[str, Array] | None
    expected: Mapping[str, Expected]

    @property
    def compares(self) -> bool:
        return any(each.values is not None for each in self.expected.values())

    def asked_of_another(self) -> Question:
        """The question for another version, which must answer finite numbers where this version does."""
        finite = [
            name for name, each in self.expected.items() if each.values is not None and np.isfinite(each.values).all()
        ]
        return Question(self.inputs, dict.fromkeys(finite, Expected()))


def question(config: Mapping[str, Any], version: str, model_dir: Path | None) -> Question:
    """`config`: Triton's configuration as JSON; `model_dir`: the model's folder, None if not at hand.

    Raises LookupError, TypeError, ValueError, AttributeError or zlib.error for a configuration of another form.
    """
    if model_dir and (from_sample := _stored_beside(config, model_dir / version)):
        return from_sample
    stored = _stored_in(config, version)
    if model_dir and not stored.compares:
        others = (_stored_beside(config, model_dir / number) for number in _others(model_dir, version))
        if other := next(filter(None, others), None):
            return other.asked_of_another()
    return stored


def _others(model_dir: Path, version: str) -> Iterator[str]:
    """The model's other versions, the newest first."""
    with suppress(OSError):
        yield from (str(number) for number in reversed(versions(model_dir)) if str(number) != version)


def _stored_beside(config: Mapping[str, Any], folder: Path) -> Question | None:
    """The question from sample.npz in a version's folder, None without a sample that fits the model."""
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
    """At least the manifest's, which was measured on the file alone: in a server a batch holds other requests too."""
    given, is_ours = manifest["sample_tolerance"][name], "model_config" in manifest
    if given is None or (is_ours and "HINT_BF16" in config.get("parameters", {})):
        return None
    if is_ours:
        return max(float(given), LOGIT_TOLERANCE)
    numbers = np.abs(values.astype(np.float64))
    return max(float(given), SHARED_BATCH_TOLERANCE * float(numbers[np.isfinite(numbers)].max(initial=0.0)))


def _stored_in(config: Mapping[str, Any], version: str) -> Question:
    """The question from the parameter `probe`, which has an image and the logits of some versions."""
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
    """An input's shape for one row, with 1 for open sizes."""
    sizes = [max(1, int(size)) for size in given["dims"]]
    return [1, *sizes] if config.get("max_batch_size", 0) > 0 else sizes


def request(config: Mapping[str, Any], inputs: Mapping[str, Array] | None) -> tuple[bytes, bytes]:
    """The JSON part and the binary part of an inference request."""
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
    """Shape and bytes of an input. Triton has no scalars: one number per row gets the size 1."""
    batch = 1 if config.get("max_batch_size", 0) > 0 else 0
    return [*array.shape[:batch], *(array.shape[batch:] or [1])], array.tobytes()


def outputs(answer: bytes, header_bytes: int) -> dict[str, Array]:
    """Triton's answer, with `header_bytes` of JSON before binary data -> arrays by output, without text."""
    arrays, start = {}, header_bytes
    for each in json.loads(answer[:header_bytes])["outputs"]:
        size = each["parameters"]["binary_data_size"]
        if each["datatype"] in DTYPES:
            shape, dtype = each["shape"], DTYPES[each["datatype"]]
            arrays[each["name"]] = np.frombuffer(answer[start : start + size], dtype, prod(shape)).reshape(shape)
        start += size
    return arrays


def judged(expected: Mapping[str, Expected], found: Mapping[str, Array]) -> Judged:
    """Compares the outputs `found` with `expected`.

    Raises LookupError for a missing output, ValueError for missing or extra numbers.
    """
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
    """The largest absolute error; NaN or infinity if the two differ in a number that is not finite."""
    if expected.size != found.size:
        raise ValueError(f"{found.size} numbers in {name} for {expected.size}")
    wanted, numbers = expected.astype(np.float64).ravel(), found.astype(np.float64).ravel()
    same = (wanted == numbers) | (np.isnan(wanted) & np.isnan(numbers))
    return float(np.abs(wanted[~same] - numbers[~same]).max(initial=0.0))


def _same_class(expected: Array, found: Array) -> bool:
    return bool((expected.argmax(-1) == found.reshape(expected.shape).argmax(-1)).all())
