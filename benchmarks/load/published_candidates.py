"""Exports candidates and publishes them for the measured server; and what is changed in published models."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.measure.candidate import Candidate
from export.precision_table import IN_A_PLAN, PRECISIONS

if TYPE_CHECKING:
    from export.compare_logits import Logits
    from export.precision_table import Device, Precision
    from export.publishing.artifact import Artifact

IMAGES = 64  # for the comparison of answers; larger batches repeat them


class Failed(Exception):
    """A load that could not be measured."""


class WrongAnswer(Failed):
    """A load whose answers differ from the expected logits, so its times count for nothing."""


@dataclass(frozen=True)
class Published:
    """The bytes of the exported ONNX file and, for TensorRT, of the `plan` that was built from it."""

    data: bytes
    plan: bytes | None = None


def device_of_server(option: str) -> Device:
    """The server's device for `--device`: a GPU only with a native server. Raises ClickException."""
    from benchmarks.measure.devices import choose
    from serving.launcher import native_server

    if native_server(os.environ.get("PATH", os.defpath)):
        return choose(option)
    if option == "cuda":
        raise click.ClickException("--device cuda: expected a native tritonserver, found nvidia-pytriton's for CPUs")
    return "cpu"


def server_arguments(shares_memory: bool = False) -> list[str]:
    """Arguments with which the server starts even if a model does not load.

    `shares_memory`: whether clients may share memory with the server.
    """
    from serving.parse_triton_arguments import BY_PRIORITY

    tolerant = ["--exit-on-error=false", "--strict-readiness=false"]
    sharing = shared_memory_arguments(os.environ.get("PATH", os.defpath)) if shares_memory else []
    return [*tolerant, BY_PRIORITY, *sharing]


def shared_memory_arguments(search_path: str) -> list[str]:
    """Arguments that let clients share memory.

    Native servers need an argument from Triton 26.05 on. The launcher's server demands a key for shared memory, which
    perf_analyzer cannot send over gRPC, so its control calls are opened. `search_path`: the value of $PATH.
    """
    from serving.launcher import native_server
    from serving.restricted_api import OPEN

    native = native_server(search_path)
    if native is None:
        return [OPEN]
    done = subprocess.run([native, "--help"], capture_output=True, text=True, timeout=60)
    option = "--allow-client-shm"
    return [f"{option}=true"] if option in done.stdout + done.stderr else []


def publish(
    candidate: Candidate, repository: Path, names: Mapping[str, tuple[int, int] | None], largest: int = 1
) -> Published:
    """Exports the candidate with all rewrites and publishes it under each name.

    `names`: name on the server -> (instances, threads); None: the defaults. `largest`: images of a request, at most.
    Raises ExportError, and DataError if the check of a lower precision lacks the test images.
    """
    from export.checkpoint_to_onnx import Form
    from export.checkpoint_to_version import Target, export_checkpoint, export_for
    from export.errors import Unavailable
    from export.publishing.build_config_pbtxt import Serving
    from export.publishing.new_config import MAX_BATCH_SIZE
    from export.publishing.publish import publish as publish_artifact

    engine: Any = candidate.runtime.engine
    bfloat16 = candidate.precision == "bf16"
    precision: Any = "fp32" if bfloat16 else candidate.precision  # OpenVINO rounds a float32 file
    path, data_folder = candidate.network.path, candidate.network.data_folder
    if engine == "tensorrt":
        if candidate.precision not in IN_A_PLAN:
            raise Unavailable(f"TensorRT is served only in {', '.join(IN_A_PLAN)}")
        form = Form("all", fuse_attention=True)
        source = export_checkpoint(path, form, data_dir=data_folder).artifact
        artifact = _engine(source, precision, largest)
    else:
        source = artifact = export_for(Target(precision), path, Form("all"), data_dir=data_folder).artifact
    for name, instances_and_threads in names.items():
        instances, threads = instances_and_threads or (None, None)
        serving = Serving(engine, instances, threads, bfloat16, max(largest, MAX_BATCH_SIZE), candidate.device)
        publish_artifact(repository, name, artifact, serving)
    return Published(source.data, artifact.data if engine == "tensorrt" else None)


@contextmanager
def edited_config(model: Path) -> Iterator[Any]:
    """The configuration of the published model in the folder `model`, as protobuf. The end of the block writes it."""
    from export.publishing.new_config import to_text
    from export.publishing.publish import read_config

    config = read_config(model)
    yield config
    (model / "config.pbtxt").write_text(to_text(config))


def joining(packed: Artifact) -> Artifact:
    """The artifact of a packed encoder, with a mark: the server may join requests of different lengths.

    Raises Failed if joined requests would not get the answers of single requests.
    """
    from export.publishing.batching_proof import prove_joining

    artifact, reasons = prove_joining(packed)
    if artifact.origin.joined_lengths is None:
        raise Failed("; ".join(reasons))
    return artifact


def _engine(source: Artifact, precision: Any, largest: int) -> Artifact:
    from export.checkpoint_to_version import export_engine
    from export.engines.gpu import require_for_server
    from export.engines.tensorrt_engine import EngineOptions

    gpu = require_for_server()
    options = EngineOptions(precision, opt_batch=largest, max_batch=max(largest, IMAGES))
    return export_engine(source, options, gpu).artifact


def check(name: object, logits: Logits, expected: Logits, precision: Precision = "fp32") -> None:
    """Raises WrongAnswer if logits of the server differ from those of this process by more than the tolerance.

    `name`: of the server's model or transport, for the message.
    """
    from export import compare_logits

    try:
        compare_logits.check(f"{name}", expected, logits, PRECISIONS[precision].tolerance)
    except compare_logits.EquivalenceError as error:
        raise WrongAnswer(f"{error}, beside the logits in process") from error
