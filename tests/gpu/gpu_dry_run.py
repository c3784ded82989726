"""`make benchmarks-gpu DRY_RUN=1`: prints the commands of the GPU preset, and runs them with small loads on a stub.

Out: what this machine lacks, and a line for each fault that would falsify a GPU's figures. The stubs stay in this
process.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache, partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
from gpu_faults import configuration, engines, plan, rows
from stub_device import install
from stub_tensorrt import FAULT, USED

from benchmarks.measure.candidate import Candidate
from benchmarks.measure.workload_settings import Workload
from benchmarks.presets.gpu import OUTPUT, ROOT, Step, prepared

IMAGES = 64  # of the test data
SMALL = {"5000": "3", "64": "4"}  # images of a call in the preset -> here
BUILDS: list[tuple[bytes, Any]] = []
"""ONNX file and options of each TensorRT engine that latency.py has built."""


@click.command()
def dry_run() -> None:
    planned, missing = prepared(OUTPUT, fetch=False)
    for step in planned:
        click.echo(f"{step.minutes:4.0f} min  {shlex.join(step.words)}")
    click.echo(f"Missing on this machine: {', '.join(missing.values()) or 'nothing'}")
    if lines := rehearse(planned):
        raise click.ClickException("\n".join([f"the rehearsal found {len(lines)} faults", *lines]))
    click.echo("Rehearsed every command on a stub device: no fault. No figure was measured")


def rehearse(planned: Sequence[Step]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        stub(Path(folder))
        return faults(planned, ROOT, Path(folder))


def faults(planned: Sequence[Step], root: Path, folder: Path) -> list[str]:
    """A line for each fault of the steps on the stub device. `root`: the Makefile's folder."""
    lines = [*plan(planned, root), *_backend(folder)]
    for step in planned:
        lines += _rehearsed(step, folder)
    return list(dict.fromkeys(lines))


def stub(folder: Path) -> None:
    """Installs the stub device, and makes measurements short.

    Raises ClickException without a C compiler or TensorRT's bindings.
    """
    try:
        install(folder)
    except (ImportError, OSError) as error:
        needs = "expected a C compiler and TensorRT's bindings (tensorrt_cu13_bindings)"
        raise click.ClickException(f"stub device: {needs}, found {error}") from error
    import torch

    from benchmarks.measure.interleaved_timing import ON_A_GPU
    from benchmarks.studies.batch_norm_layout_timing import measure
    from export.checkpoint_to_version import export_checkpoint
    from export.compare_logits import onnx_classifier
    from export.engines.tensorrt_engine import build
    from export.precision import _gate
    from models.data import load_digits

    torch.set_num_threads(1)
    onnx_classifier.__defaults__ = (1,)
    data, gate = load_digits(), cast("Callable[..., Any]", _gate)
    digits = replace(data, test_images=data.test_images[:IMAGES], test_labels=data.test_labels[:IMAGES])
    for place, value in {
        "benchmarks.measure.latency_measurement.ON_A_GPU": replace(ON_A_GPU, load_s=0.0, turn_s=0.0),
        "benchmarks.measure.interleaved_timing.MOST_ROUNDS": 1,
        "benchmarks.measure.peak_flops_and_bandwidth.SIDE": {"cpu": 64, "cuda": 64},
        "benchmarks.measure.peak_flops_and_bandwidth.STREAM_FLOATS": 1 << 10,
        "benchmarks.measure.run_tensorrt.build": partial(_build, build),
        "benchmarks.load.compared_loads.run": _load,
        "benchmarks.load.by_perf_analyzer._run": _perf_analyzer,
        "benchmarks.presets.added._measure": lambda candidate, batch, *_: _load_of_one(candidate, batch),
        "benchmarks.presets.added.digits": lambda *_: digits,
        "export.checkpoint_to_version.export_checkpoint": cache(export_checkpoint),
        "export.checkpoint_to_version.own_dataset": lambda *_: digits,
        "export.precision._gate": lambda *arguments: gate(*arguments[:-1], 100.0),
        "models.data.load_dataset": lambda *_: digits,
        "benchmarks.studies.batch_norm_layout_timing.DEPTHS": (1,),
        "benchmarks.studies.batch_norm_layout_timing.BATCH": 4,
        "benchmarks.studies.batch_norm_layout_timing.STEPS": 1,
        "benchmarks.studies.batch_norm_layout_timing.measure": partial(measure, rounds=1),
        "serving.launcher.native_server": lambda path: Path("tritonserver"),
    }.items():
        module, _, name = place.rpartition(".")
        setattr(importlib.import_module(module), name, value)


def _rehearsed(step: Step, folder: Path) -> Iterator[str]:
    """Runs the step and yields its faults. What the step prints is dropped."""
    if step.name == "report":
        return
    result, output = folder / f"{step.name}.json", StringIO()
    BUILDS.clear()
    try:
        command: click.Command = getattr(importlib.import_module(step.module), step.name)
        with redirect_stdout(output):
            command.main([*_small(step, folder, result)], step.name, standalone_mode=False)
    except _Loaded as loaded:
        yield from loaded.faults
    except Exception as error:  # engines raise anything
        message = error.format_message() if isinstance(error, click.ClickException) else repr(error)
        yield f"{step.module}: {' '.join(message.split())}"
    if result.exists():
        yield from rows(json.loads(result.read_text())["rows"])
        result.unlink()
    yield from engines(BUILDS)


def _small(step: Step, folder: Path, result: Path) -> Iterator[str]:
    """The step's arguments with fewer images, less time and files in `folder`."""
    previous = ""
    for word in step.arguments:
        if previous in ("--batch", "--max-batch"):
            yield SMALL.get(word, word)
        elif previous == "--json":
            yield str(result)
        elif previous in ("--repository", "--output", "--timing-cache"):
            yield str(folder / Path(word).name)
        else:
            yield "1" if previous == "--seconds" else word
        previous = word
    if step.name == "latency":
        yield from ("--threads", "1")
    if step.name == "latency" and "--published-configuration" not in step.arguments:
        yield from ("--depth", "1")
    if step.name == "tensorrt":
        yield from ("--max-batch", "64")


# latency.py


def _build(build: Callable[..., bytes], proto: Any, config: Any, options: Any) -> bytes:
    BUILDS.append((proto.SerializeToString(deterministic=True), options))
    return build(proto, config, options)


# throughput.py


class _Loaded(Exception):
    """Ends a command where its measurements of the server would begin. `faults`: of what comes before."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__()
        self.faults = faults


def _load_of_one(candidate: Candidate, batch: int) -> None:
    _load([(candidate, Workload(batch, 1))])


def _load(cells: Sequence[tuple[Candidate, Workload]], *_: object) -> Iterator[Any]:
    """Publishes the cells, checks configurations and answers in process, and the arguments of perf_analyzer.

    Raises _Loaded with the faults.
    """
    from benchmarks.load import by_perf_analyzer, in_process
    from benchmarks.load.compared_loads import publish_all
    from benchmarks.load.published_candidates import check
    from benchmarks.measure.engines import start
    from benchmarks.measure.progress import one_line
    from benchmarks.measure.workload_settings import served_name

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        published, lost = publish_all(cells, folder / "models")
        faults = [f"throughput.py: {candidate.name}: {one_line(error)}" for (candidate, _), error in lost.items()]
        for candidate, files in published.items():
            images = candidate.network.examples(4)
            copy = in_process.start_instance(files, candidate)
            check(candidate.name, copy.logits(images, 4), start(files.data)(images), candidate.precision)
        server: Any = SimpleNamespace(http_url="127.0.0.1:8000", grpc_url="127.0.0.1:8001")
        for candidate, workload in cells:
            if candidate not in published:
                continue
            path = folder / "models" / served_name(candidate, workload) / "config.pbtxt"
            faults += configuration(path.read_text(), workload.instances)
            try:
                by_perf_analyzer.measure(server, candidate, workload, images, 1.0, folder)
            except Exception as error:
                faults.append(f"perf_analyzer: {one_line(error)}")
    raise _Loaded(faults)


def _perf_analyzer(command: list[str], report: Path) -> None:
    """Stands in for perf_analyzer: checks the options against its help, and writes a report. Raises ValueError."""
    from benchmarks.load.by_perf_analyzer import COMPUTE

    known = _words_of_help(command[0])
    for word in command:
        if word.startswith("-") and word not in known:
            raise ValueError(f"no option {word}")
    columns = ["Inferences/Second", *(f"p{percent} latency" for percent in (50, 90, 95, 99)), "Server Queue", *COMPUTE]
    report.write_text(f"{','.join(columns)}\n{','.join('1' for _ in columns)}\n")


def _words_of_help(program: str) -> set[str]:
    from benchmarks.load.by_perf_analyzer import TOOL

    folders = [str(TOOL / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(folders)}
    done = subprocess.run([program, "--help"], env=environment, capture_output=True, text=True)
    return {word.strip("[],:=<>()") for word in (done.stdout + done.stderr).split()}


# The server's backend


def _backend(folder: Path) -> Iterator[str]:
    """Faults of our ONNX Runtime backend for Triton when a model asks for a GPU."""
    import onnx
    from onnx import TensorProto, helper

    from serving.launcher import pytriton_folder

    sys.path.insert(0, str(pytriton_folder() / "tritonserver" / "backends" / "python"))
    backend = importlib.import_module("serving.backends.onnxruntime.model")
    value = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=["batch", 1])
    graph = helper.make_graph([helper.make_node("Identity", ["a"], ["b"])], "graph", [value("a")], [value("b")])
    path = folder / "identity.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    accelerator = {"name": "cuda", "parameters": {"use_tf32": "0"}}
    accelerators = {"execution_accelerators": {"gpu_execution_accelerator": [accelerator]}}
    configuration = {"max_batch_size": 8, "optimization": accelerators}
    instance = {"model_instance_kind": "GPU", "model_instance_device_id": "0"}
    load = partial(backend.TritonPythonModel().load, path, configuration, instance)
    where = "ONNX Runtime's backend of the server"
    USED.clear()
    load()
    for call in (
        ["onnxruntime", "preload_dlls", ""],
        ["CUDAExecutionProvider", "options", {"device_id": "0", "use_tf32": "0"}],
    ):
        if call not in USED:
            yield f"{where}: expected {call}, found {USED}"
    FAULT.append("no provider")
    try:
        load()
    except backend.ModelRefused:
        return
    finally:
        FAULT.clear()
    yield f"{where}: expected a refusal of a model that asked for a GPU and got a CPU, found none"


if __name__ == "__main__":
    dry_run()
