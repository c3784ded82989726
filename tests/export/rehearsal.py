"""The command `to_tensorrt` on the stub device: `python rehearsal.py EXPORTS`.

In: lines of standard input, each a JSON list of a folder, a file, a planted fault and the command's arguments; the
arguments `served FOLDER` use an engine as the benchmarks do. Out: per line the exit code; `stdout` and `stderr` in the
folder; the use of TensorRT in the file. A child runs each line, which saves the imports.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import tensorrt as trt

from benchmarks.measure.stub_device import FAULT, USED, in_tensorrt
from export.equivalence import onnx_classifier
from export.to_tensorrt import tensorrt as command


def served(folder: Path) -> None:
    import torch

    from benchmarks.load.in_process import instances
    from benchmarks.load.published import check, publish
    from benchmarks.measure.candidate import Candidate, start
    from benchmarks.measure.networks import example_images

    candidate = Candidate("vitbn-tiny", "tensorrt", device="cuda")
    published = publish(candidate, folder, {"it": (1, 0)}, 64)
    images = example_images(published.config, 9)
    expected = start(published.data)(images)
    torch.cuda.Stream = torch.cuda.current_stream = lambda: SimpleNamespace(cuda_stream=7)  # the host is the device
    torch.cuda.stream, torch.Tensor.to = lambda stream: nullcontext(), lambda self, device: self
    (copy,) = instances(published, candidate, 1)
    check("for the server", copy.logits(images, 5), expected)
    run = start(published.data, candidate, (4, 9))
    check("in latency.py", run(torch.from_numpy(images)).numpy(), expected)


def rehearse(log: Path, arguments: list[str]) -> None:
    in_tensorrt()
    FAULT.append(PLANTED)
    if PLANTED == "another version":  # lacks a method in use
        del trt.IBuilderConfig.set_memory_pool_limit
    try:
        served(Path(arguments[1])) if arguments[0] == "served" else command(arguments)
    finally:
        log.write_text(json.dumps(USED))


def warm_up(exports: Path) -> None:
    """The children find this run's graphs in `exports`."""
    import onnxscript  # noqa: F401
    import polygraphy.backend.trt  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch

    import export.pipeline  # noqa: F401

    onnx_classifier.__defaults__ = (1,)  # as in conftest.py
    sys.path.append(str(Path(__file__).parents[1]))
    from exports_once import once

    torch.onnx.export = once(torch.onnx.export, exports)


if __name__ == "__main__":
    warm_up(Path(sys.argv[1]))
    for line in sys.stdin:
        output, log, PLANTED, *arguments = json.loads(line)
        if child := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            continue
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(Path(output, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        rehearse(Path(log), arguments)
        sys.exit()
