"""Any ONNX file -> the next version of a model.

In: a file, preferably from `vitbn rewrite` with manifest and sample. Out: a version folder with model.onnx, its
weights, manifest.json and sample.npz, which `verify` replays.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from export.onnx_rewrites.errors import ForeignError
from export.onnx_rewrites.files import read_model, sha256, weight_files, write_sample
from export.onnx_rewrites.inputs import Feeds
from export.onnx_rewrites.prepare import Prepare
from export.onnx_rewrites.proof import TOLERANCES, answers, session
from export.onnx_rewrites.stage import Request, dtype_of, proof_inputs
from export.publishing.artifact import MANIFEST_FILE, ONNX_FILE, SAMPLE_FILE, PublishError
from export.publishing.publish import CONFIG_FILE, add_version, check_name, locked, read_config, versions
from export.publishing.triton_config import (
    MAX_BATCH_SIZE,
    Serving,
    configure,
    serve_versions,
    served_versions,
    set_tf32,
    to_text,
)
from models.files import write_atomically

if TYPE_CHECKING:
    import onnxruntime as ort
    from tritonclient.grpc import model_config_pb2 as pb

KIND, WARMUP = "foreign", "warmup"
TOLERANCE = 1e-4  # relative to the outputs: processors and batch sizes round differently

TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
}


def is_foreign(manifest_path: Path) -> bool:
    """A missing manifest counts as foreign."""
    try:
        manifest = json.loads(manifest_path.read_text())
    except (OSError, ValueError):
        return not manifest_path.exists()
    return isinstance(manifest, dict) and manifest.get("kind") in (KIND, "rewritten")


def publish_foreign(repository: Path, name: str, file: Path, serving: Serving) -> Path:
    """Raises PublishError if the model has other tensors, ForeignError for a file that does not run."""
    check_name(name)
    model, runner, sample = read_model(file), session(file), _sample(file)
    outputs, model_dir = answers(runner, sample), repository / name

    def write(version: Path) -> None:
        for path in weight_files(model):
            shutil.copyfile(path, version / path.name)
        shutil.copyfile(file, version / ONNX_FILE)
        write_sample(version / SAMPLE_FILE, sample, outputs)
        write_atomically(version / MANIFEST_FILE, json.dumps(_manifest(file, version), indent=2).encode())

    def describe(folder: Path, number: int) -> None:
        message = config_of(name, runner, sample, serving, number)
        for key, array in sample.items():
            row = array[:1] if message.max_batch_size else array
            write_atomically(folder / WARMUP / _file_name(key, number), np.ascontiguousarray(row).tobytes())
        serve_versions(message, [*default, number], versions(folder))
        write_atomically(folder / CONFIG_FILE, to_text(message).encode())

    with locked(repository):
        default: list[int] = []
        if model_dir.is_dir():
            _same_contract(model_dir, config_of(name, runner, sample, serving))
            default = served_versions(read_config(model_dir), versions(model_dir))[-1:]
        return add_version(model_dir, write, describe)


def config_of(
    name: str, runner: ort.InferenceSession, sample: Feeds, serving: Serving, number: int = 1
) -> pb.ModelConfig:
    """Triton joins requests only if all inputs and outputs share a free first axis."""
    from tritonclient.grpc import model_config_pb2 as pb

    tensors = [*runner.get_inputs(), *runner.get_outputs()]
    unknown = [tensor for tensor in tensors if tensor.type not in TYPES]
    if unknown:
        raise PublishError(f"{unknown[0].name}: expected numbers, found {unknown[0].type}")
    first = {tensor.shape[0] if tensor.shape else None for tensor in tensors}
    batched = len(first) == 1 and isinstance(next(iter(first)), str)

    def dims(shape: list[int | str | None]) -> list[int]:
        return [size if isinstance(size, int) else -1 for size in shape[1 if batched else 0 :]]

    message = pb.ModelConfig(
        name=name,
        backend="onnxruntime",
        max_batch_size=MAX_BATCH_SIZE if batched else 0,
        instance_group=[pb.ModelInstanceGroup(kind=pb.ModelInstanceGroup.KIND_AUTO)],
    )
    set_tf32(message, "fp32")
    if batched:
        message.dynamic_batching.SetInParent()
    for tensor in runner.get_inputs():
        message.input.add(name=tensor.name, data_type=pb.DataType.Value(TYPES[tensor.type]), dims=dims(tensor.shape))
    for tensor in runner.get_outputs():
        message.output.add(name=tensor.name, data_type=pb.DataType.Value(TYPES[tensor.type]), dims=dims(tensor.shape))
    warmup = message.model_warmup.add(name="sample", batch_size=1)
    for given in message.input:
        shape = sample[given.name].shape[1 if batched else 0 :]
        data = _file_name(given.name, number)
        warmup.inputs[given.name].CopyFrom(
            pb.ModelWarmup.Input(data_type=given.data_type, dims=shape, input_data_file=data)
        )
    asked = Serving(instances=serving.instances or 1, threads=serving.threads or 0)
    if batched:
        configure(message, asked)
    else:
        message.instance_group[0].count = asked.instances or 1
        message.parameters["intra_op_thread_count"].string_value = str(asked.threads)
    return message


def _file_name(tensor: str, number: int) -> str:
    """A warm-up input's file; versions may differ in its shape."""
    return f"{number}_" + "".join(letter if letter.isalnum() else "_" for letter in tensor)


def _same_contract(model_dir: Path, message: pb.ModelConfig) -> None:
    """Raises PublishError if older versions' clients could not call the new version."""
    held = read_config(model_dir)
    for kind in ("input", "output"):
        old, new = ([(t.name, t.data_type, [*t.dims]) for t in getattr(each, kind)] for each in (held, message))
        if (old, held.max_batch_size) != (new, message.max_batch_size):
            raise PublishError(f"{model_dir}: expected the {kind}s {old}, found {new}; publish it under another --name")


def _sample(file: Path) -> Feeds:
    beside = file.with_suffix(".npz")
    if beside.exists():
        with np.load(beside, allow_pickle=False) as held:
            return {name[3:]: held[name] for name in held.files if name.startswith("in:")}
    model = read_model(file)
    Prepare()(model)
    return proof_inputs(model, model.graph, file, Request(proof="float32")).rounds[-1]


def _manifest(file: Path, version: Path) -> dict[str, Any]:
    beside = file.with_suffix(".json")
    about: dict[str, Any] = json.loads(beside.read_text()) if beside.exists() else {"rewrites": []}
    held = sorted(path for path in version.iterdir() if path.name not in (MANIFEST_FILE,))
    names = [path.name for path in held]
    tolerance = max(TOLERANCE, TOLERANCES[dtype_of(read_model(file))])
    return about | {"kind": KIND, "file": ONNX_FILE, "files": names, "sha256": sha256(held), "tolerance": tolerance}


def verify_foreign(folder: Path) -> str | None:
    """The problem, if any."""
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text())
        found = sha256([folder / name for name in manifest["files"]])
        if found != manifest["sha256"]:
            return f"{folder}: expected the SHA-256 {manifest['sha256']}, found {found}"
        with np.load(folder / SAMPLE_FILE, allow_pickle=False) as held:
            sample = {name: held[name] for name in held.files}
        given = {name[3:]: array for name, array in sample.items() if name.startswith("in:")}
        for name, array in answers(session(folder / ONNX_FILE), given).items():
            expected = sample[f"out:{name}"].astype(np.float64)
            error = float(np.abs(expected - array).max()) / (float(np.abs(expected).max()) or 1.0)
            if not error <= manifest["tolerance"]:
                return f"{folder}: {name}: expected an error of at most {manifest['tolerance']:.0e}, found {error:.1e}"
    except (OSError, ValueError, KeyError, TypeError, ForeignError) as error:
        return f"{folder}: expected a published version, found {error}"
    return None
