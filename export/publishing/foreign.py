"""Any ONNX file -> the next version of a model.

In: a file, preferably from `vitbn rewrite` with manifest and sample. Out: a version folder with model.onnx, its
weights, manifest.json and sample.npz, which `verify` replays.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from export.onnx_rewrites.errors import ForeignError
from export.onnx_rewrites.files import read_model, sha256, weight_files, weights_by_place, write_sample
from export.onnx_rewrites.inputs import Feeds
from export.onnx_rewrites.prepare import Prepare
from export.onnx_rewrites.proof import TOLERANCES, answers, session
from export.onnx_rewrites.rounds import Asked, find_rounds
from export.onnx_rewrites.stage import dtype_of
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

KIND, REWRITTEN, WARMUP, WARMUP_NAME = "foreign", "rewritten", "warmup", "sample"
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
    try:
        manifest = json.loads(manifest_path.read_text())
    except (OSError, ValueError):
        return not manifest_path.exists()
    return isinstance(manifest, dict) and manifest.get("kind") in (KIND, REWRITTEN)


def publish_foreign(repository: Path, name: str, file: Path, serving: Serving) -> Path:
    """As `publish`; raises PublishError if the model has other tensors, ForeignError for a file that does not run."""
    check_name(name)
    model, runner, sample = read_model(file), session(file), _sample(file)
    outputs, model_dir = answers(runner, sample), repository / name
    weights = weights_by_place(file)
    about = _about(file, weight_files(model))

    def write(version: Path, number: int) -> None:
        for place, path in weights.items():
            (version / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, version / place)
        shutil.copyfile(file, version / ONNX_FILE)
        write_sample(version / SAMPLE_FILE, sample, outputs)
        write_atomically(version / MANIFEST_FILE, json.dumps(about | _manifest(file, version), indent=2).encode())
        if problem := verify_foreign(version):
            raise PublishError(problem)

    def write_config(folder: Path, number: int) -> None:
        _warm_up(message, folder, sample, number)
        serve_versions(message, [*default, number], versions(folder))
        write_atomically(folder / CONFIG_FILE, to_text(message).encode())

    with locked(repository):
        default: list[int] = []
        message = config_of(name, runner)
        if model_dir.is_dir():
            held = read_config(model_dir)
            _check_same_contract(model_dir, held, message)
            message, default = held, served_versions(held, versions(model_dir))[-1:]
        else:
            serving = replace(serving, instances=serving.instances or 1, threads=serving.threads or 0)
        _configure(message, serving)
        set_tf32(message, "fp32" if dtype_of(model) == "float32" else "fp16")
        return add_version(model_dir, write, write_config)


def config_of(name: str, runner: ort.InferenceSession) -> pb.ModelConfig:
    """Triton joins requests only if all inputs and outputs share a free first axis. Raises PublishError."""
    from tritonclient.grpc import model_config_pb2 as pb

    tensors = [*runner.get_inputs(), *runner.get_outputs()]
    for tensor in tensors:
        if tensor.type not in TYPES:
            raise PublishError(f"{tensor.name}: expected numbers, found {tensor.type}")
        if not tensor.shape:
            raise PublishError(f"{tensor.name}: expected at least one axis, found none: Triton takes no scalars")
    first = {tensor.shape[0] for tensor in tensors}
    batched = len(first) == 1 and isinstance(next(iter(first)), str)
    message = pb.ModelConfig(
        name=name,
        backend="onnxruntime",
        max_batch_size=MAX_BATCH_SIZE if batched else 0,
        instance_group=[pb.ModelInstanceGroup(kind=pb.ModelInstanceGroup.KIND_AUTO)],
    )
    if batched:
        message.dynamic_batching.SetInParent()
    for added, given in ((message.input, runner.get_inputs()), (message.output, runner.get_outputs())):
        for tensor in given:
            dims = [size if isinstance(size, int) else -1 for size in tensor.shape[1 if batched else 0 :]]
            entry = added.add(name=tensor.name, data_type=pb.DataType.Value(TYPES[tensor.type]), dims=dims or [1])
            if not dims:  # a number for each row
                entry.reshape.SetInParent()
    message.model_warmup.add(name=WARMUP_NAME, batch_size=1)
    return message


def _configure(message: pb.ModelConfig, serving: Serving) -> None:
    """As `configure`, but without batches Triton takes neither their size nor a queue."""
    if serving.max_batch and not message.max_batch_size:
        raise PublishError(f"{message.name}: expected a common free first axis for max_batch, found none")
    message.max_batch_size = serving.max_batch or message.max_batch_size
    instances = serving.instances if message.max_batch_size else None
    configure(message, replace(serving, max_batch=None, instances=instances))
    if serving.instances and not message.max_batch_size:
        group = message.instance_group[0] if message.instance_group else message.instance_group.add()
        group.count = serving.instances


def _warm_up(message: pb.ModelConfig, folder: Path, sample: Feeds, number: int) -> None:
    """Writes the version's own sample: versions may differ in its shape."""
    for warmup in message.model_warmup:
        if warmup.name != WARMUP_NAME:
            continue  # the operator's
        for index, given in enumerate(message.input):
            array = sample[given.name][:1] if message.max_batch_size else sample[given.name]
            file = f"{number}_{index}_" + "".join(letter if letter.isalnum() else "_" for letter in given.name)
            entry = warmup.inputs[given.name]
            entry.data_type, entry.input_data_file = given.data_type, file
            entry.dims[:] = (array.shape[1:] if message.max_batch_size else array.shape) or [1]
            write_atomically(folder / WARMUP / file, np.ascontiguousarray(array).tobytes())


def _check_same_contract(model_dir: Path, held: pb.ModelConfig, message: pb.ModelConfig) -> None:
    if "model_config" in held.parameters:
        raise PublishError(f"{model_dir}: expected a foreign model, found exports; publish it under another --name")
    for kind in ("input", "output"):
        old, new = ([(t.name, t.data_type, _shape(t)) for t in getattr(each, kind)] for each in (held, message))
        if old != new:
            raise PublishError(f"{model_dir}: expected the {kind}s {old}, found {new}; publish it under another --name")
    if bool(held.max_batch_size) != bool(message.max_batch_size):
        raise PublishError(
            f"{model_dir}: expected max_batch_size {held.max_batch_size}, found {message.max_batch_size}; "
            "publish it under another --name"
        )


def _shape(tensor: pb.ModelInput | pb.ModelOutput) -> list[int]:
    """The file's shape; clients see `dims`."""
    return [*(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)]


def _sample(file: Path) -> Feeds:
    beside = file.with_suffix(".npz")
    if beside.exists():
        with np.load(beside, allow_pickle=False) as held:
            return {name[3:]: held[name] for name in held.files if name.startswith("in:")}
    model = read_model(file)
    Prepare()(model)
    return find_rounds(model, model.graph, file, Asked()).feeds[-1]


def _about(file: Path, weights: list[Path]) -> dict[str, Any]:
    """The manifest of `vitbn rewrite` beside it. Raises PublishError for another file's."""
    beside = file.with_suffix(".json")
    if not beside.exists():
        return {"rewrites": []}
    about: dict[str, Any] = json.loads(beside.read_text())
    found = sha256([file, *weights])
    if about.get("kind") == REWRITTEN and about.get("sha256") != found:
        raise PublishError(f"{file}: expected the SHA-256 {about.get('sha256')} of {beside.name}, found {found}")
    return about


def _manifest(file: Path, version: Path) -> dict[str, Any]:
    held = sorted(path for path in version.rglob("*") if path.is_file() and path.name != MANIFEST_FILE)
    names = [path.relative_to(version).as_posix() for path in held]
    tolerance = max(TOLERANCE, TOLERANCES[dtype_of(read_model(file))])
    return {"kind": KIND, "file": ONNX_FILE, "files": names, "sha256": sha256(held), "tolerance": tolerance}


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
            if array.shape != expected.shape:
                return f"{folder}: {name}: expected the shape {expected.shape}, found {array.shape}"
            error = float(np.abs(expected - array).max()) / (float(np.abs(expected).max()) or 1.0)
            if not error <= manifest["tolerance"]:
                return f"{folder}: {name}: expected an error of at most {manifest['tolerance']:.0e}, found {error:.1e}"
    except (OSError, ValueError, KeyError, TypeError, ForeignError) as error:
        return f"{folder}: expected a published version, found {error}"
    return None
