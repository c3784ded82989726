"""Finds the sample that a probe sends to a served version, and judges the answer.

In: the version's configuration and, if its files are on this machine, its folder with sample.npz and manifest.json, as
export/publishing/ writes them. Out: a `Question`; then a judgement: right, wrong or not compared.

A version without a sample is asked the sample of another version, and its answer need only be finite. If no version
has a sample, zeros are sent.
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
ELEMENT_BYTES = {"BF16": 2, "STRING": 4}  # without a dtype of numpy; an empty string is its length in 4 bytes
# Absolute, for logits of this project's models: TF32 changes a logit of 10 by up to 0.005.
LOGIT_TOLERANCE = 0.01
# Share of an output's largest number, for other models: in a batch with other requests the outputs of a dynamically
# quantised network changed by 0.006.
SHARED_BATCH_TOLERANCE = 0.02

Judgement = tuple[Literal["right", "wrong", "not compared"], float | None, str]  # state, largest error, reason
UNREADABLE = (Damaged, ValueError, LookupError, TypeError, AttributeError)


@dataclass(frozen=True)
class Expected:
    """What an output must be.

    values:    None: any finite numbers.
    tolerance: absolute; None: only the class, the index of the largest number, must agree.
    """

    values: Array | None = None
    tolerance: float | None = None


@dataclass(frozen=True)
class Question:
    """The inputs and the expected outputs of a request, by tensor name. `inputs` None: zeros are sent."""

    inputs: Mapping[str, Array] | None
    expected: Mapping[str, Expected]

    @property
    def compares(self) -> bool:
        """Whether the answer is compared with stored numbers."""
        return any(output.values is not None for output in self.expected.values())

    def for_another_version(self) -> Question:
        """The same inputs for another version. Its outputs must be finite where the outputs of this version are."""
        finite = [
            name
            for name, output in self.expected.items()
            if output.values is not None and np.isfinite(output.values).all()
        ]
        return Question(self.inputs, dict.fromkeys(finite, Expected()))


def find_question(config: Mapping[str, Any], version: str, model_dir: Path | None) -> Question:
    """The question from the version's sample.npz, else from config.pbtxt.

    If that has no answer of this version, the sample.npz of the newest other version is preferred.

    config: Triton's configuration of the version, as JSON. model_dir: the model's folder; None: on another machine.
    Raises LookupError, TypeError, ValueError, AttributeError or zlib.error for a configuration of another form.
    """
    if model_dir and (from_sample := _from_sample(config, model_dir / version)):
        return from_sample
    from_config = _from_config(config, version)
    if model_dir and not from_config.compares:
        others = (_from_sample(config, model_dir / number) for number in _other_versions(model_dir, version))
        if other := next(filter(None, others), None):
            return other.for_another_version()
    return from_config


def _other_versions(model_dir: Path, version: str) -> Iterator[str]:
    """The model's other versions, the newest first."""
    with suppress(OSError):
        yield from (str(number) for number in reversed(versions(model_dir)) if str(number) != version)


def _from_sample(config: Mapping[str, Any], folder: Path) -> Question | None:
    """The question from sample.npz in a version's folder; None without a sample that fits the model."""
    try:
        manifest, sample = read_manifest(folder / MANIFEST_FILE), Sample.read(folder / SAMPLE_FILE)
        rows = slice(config.get("max_batch_size") or None)
        inputs = {name: array[rows] for name, array in sample.inputs.items()}
        served = {output["name"] for output in config["output"]}
        expected = {
            name: Expected(array[rows], _tolerance(manifest, config, name, array[rows]))
            for name, array in sample.outputs.items()
            if name in served
        }
    except UNREADABLE:
        return None
    return Question(inputs, expected) if inputs and expected else None


def _tolerance(manifest: Mapping[str, Any], config: Mapping[str, Any], name: str, values: Array) -> float | None:
    """The absolute tolerance for an output; None: only its class must agree.

    It is larger than the manifest's tolerance, which was measured on the file alone: in a server other requests may
    share the batch.
    """
    in_manifest, is_ours = manifest["sample_tolerance"][name], "model_config" in manifest
    if in_manifest is None or (is_ours and "HINT_BF16" in config.get("parameters", {})):
        return None
    if is_ours:
        return max(float(in_manifest), LOGIT_TOLERANCE)
    numbers = np.abs(values.astype(np.float64))
    return max(float(in_manifest), SHARED_BATCH_TOLERANCE * float(numbers[np.isfinite(numbers)].max(initial=0.0)))


def _from_config(config: Mapping[str, Any], version: str) -> Question:
    """The question from the parameter `probe` of config.pbtxt: an image, and the logits of some versions.

    Without this parameter, zeros without expected outputs.
    """
    stored = json.loads(config.get("parameters", {}).get("probe", {}).get("string_value", "{}"))
    if stored == {}:
        return Question(None, {})
    answer = stored["answers"].get(version)
    packed = (answer or {}).get("image", stored["image"])
    tensor, output = config["input"][0], config["output"][0]["name"]
    image = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.uint8).reshape(_shape(config, tensor))
    expected = Expected(np.array([answer["logits"]], np.float32), answer["tolerance"]) if answer else Expected()
    return Question({tensor["name"]: image}, {output: expected})


def _shape(config: Mapping[str, Any], tensor: Mapping[str, Any]) -> list[int]:
    """An input's shape for a batch of 1; free dimensions are 1."""
    sizes = [max(1, int(size)) for size in tensor["dims"]]
    return [1, *sizes] if config.get("max_batch_size", 0) > 0 else sizes


def encode_request(config: Mapping[str, Any], inputs: Mapping[str, Array] | None) -> tuple[bytes, bytes]:
    """The JSON part and the binary part of an inference request. `inputs` None: zeros."""
    tensors, contents = [], []
    for tensor in config["input"]:
        if inputs is not None and tensor["name"] not in inputs and tensor.get("optional"):
            continue
        kind = tensor["data_type"].removeprefix("TYPE_")
        shape, content = _zeros(config, tensor, kind) if inputs is None else _content(config, inputs[tensor["name"]])
        datatype = "BYTES" if kind == "STRING" else kind
        binary = {"binary_data_size": len(content)}
        tensors.append({"name": tensor["name"], "shape": shape, "datatype": datatype, "parameters": binary})
        contents.append(content)
    header = {"inputs": tensors, "parameters": {"binary_data_output": True}}
    return json.dumps(header).encode(), b"".join(contents)


def _zeros(config: Mapping[str, Any], tensor: Mapping[str, Any], kind: str) -> tuple[list[int], bytes]:
    """Shape and bytes of an input of zeros."""
    shape = _shape(config, tensor)
    return shape, bytes(prod(shape) * (ELEMENT_BYTES.get(kind) or np.dtype(DTYPES[kind]).itemsize))


def _content(config: Mapping[str, Any], array: Array) -> tuple[list[int], bytes]:
    """Shape and bytes of an input. Triton has no scalars: a number gets a dimension of size 1."""
    batch = 1 if config.get("max_batch_size", 0) > 0 else 0
    return [*array.shape[:batch], *(array.shape[batch:] or [1])], array.tobytes()


def parse_outputs(answer: bytes, header_bytes: int) -> dict[str, Array]:
    """Triton's answer, `header_bytes` of JSON and then binary data -> arrays by output; text is left out."""
    arrays, start = {}, header_bytes
    for tensor in json.loads(answer[:header_bytes])["outputs"]:
        size = tensor["parameters"]["binary_data_size"]
        if tensor["datatype"] in DTYPES:
            shape, dtype = tensor["shape"], DTYPES[tensor["datatype"]]
            arrays[tensor["name"]] = np.frombuffer(answer[start : start + size], dtype, prod(shape)).reshape(shape)
        start += size
    return arrays


def judge(expected: Mapping[str, Expected], outputs: Mapping[str, Array]) -> Judgement:
    """Compares a server's outputs with the expected outputs.

    Raises LookupError for a missing output, ValueError for missing or extra numbers.
    """
    largest_error = 0.0
    for name, wanted in expected.items():
        if wanted.values is None:
            if not np.isfinite(outputs[name].astype(np.float64)).all():
                return "wrong", None, f"expected finite numbers in {name}, found NaN or infinity"
            continue
        error = _largest_error(name, wanted.values, outputs[name])
        if not isfinite(error):
            return "wrong", None, f"expected the stored {name}, found NaN or infinity"
        if not (_same_class(wanted.values, outputs[name]) if wanted.tolerance is None else error <= wanted.tolerance):
            return "wrong", error, f"expected the stored {name}, found an error of {error:g}"
        largest_error = max(largest_error, error)
    if any(wanted.values is not None for wanted in expected.values()):
        return "right", largest_error, ""
    return "not compared", None, "no sample of this version"


def _largest_error(name: str, expected: Array, output: Array) -> float:
    """The largest absolute error; NaN or infinity if the arrays differ in a number that is not finite."""
    if expected.size != output.size:
        raise ValueError(f"{output.size} numbers in {name} for {expected.size}")
    wanted, numbers = expected.astype(np.float64).ravel(), output.astype(np.float64).ravel()
    same = (wanted == numbers) | (np.isnan(wanted) & np.isnan(numbers))
    return float(np.abs(wanted[~same] - numbers[~same]).max(initial=0.0))


def _same_class(expected: Array, output: Array) -> bool:
    return bool((expected.argmax(-1) == output.reshape(expected.shape).argmax(-1)).all())
