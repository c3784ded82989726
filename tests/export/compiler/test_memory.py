"""Memory of `vitbn rewrite`, without a proof in float64, beside the size of a file whose weights are apart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

WIDE, WORDS, LAYERS = 512, 60_000, 110
CACHE = (8, 512, 32)

PROGRAM = """
import sys
from pathlib import Path
from export import time_files
from export.rewrite_file import Request, rewrite_file

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024

time_files.LEAST = 2
before = peak()
request = Request(["logits[:,-1:]", "*"], proof="float32", time=True, dims={"new": 8})
rewrite_file(Path(sys.argv[1]), Path(sys.argv[2]), request)
print(peak() - before)
"""


def write(path: Path, inside: bool) -> int:
    """Products with scales that the rewrite folds, a head that is the transposed table, and a cache of fixed length.

    Returns the weights' bytes.
    """
    rng = np.random.default_rng(0)
    weights = {"words": rng.standard_normal((WORDS, WIDE), np.float32), "one": np.ones(1, np.float32)}
    nodes, value = [helper.make_node("Gather", ["words", "ids"], ["x"])], "x"
    for layer in range(LAYERS):
        weights[f"g{layer}"] = rng.uniform(0.5, 1.5, WIDE).astype(np.float32)
        weights[f"w{layer}"] = rng.standard_normal((WIDE, WIDE), np.float32) / np.float32(WIDE**0.5)
        nodes += [
            helper.make_node("Tanh", [value], [f"t{layer}"]),
            helper.make_node("Mul", [f"t{layer}", f"g{layer}"], [f"s{layer}"]),
            helper.make_node("MatMul", [f"s{layer}", f"w{layer}"], [f"y{layer}"]),
        ]
        value = f"y{layer}"
    nodes += [
        helper.make_node("Transpose", ["words"], ["head"], perm=[1, 0]),
        helper.make_node("MatMul", [value, "head"], ["logits"]),
        helper.make_node("Add", ["past_key", "one"], ["present_key"]),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "new"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "new", WORDS])
    past, present = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *CACHE])
        for name in ("past_key", "present_key")
    )
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "decoder", [ids, past], [logits, present], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    if inside:
        onnx.save(model, path)
        return path.stat().st_size
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=1024)
    return (path.parent / "weights").stat().st_size


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system has no /proc")
@pytest.mark.parametrize("inside", [False, True])
def test_a_file_is_rewritten_in_one_and_a_half_times_its_size(inside: bool, tmp_path: Path) -> None:
    """Timing included, which comes last and frees nothing. Weights inside the file took 5.9 times."""
    size = write(path := tmp_path / "model.onnx", inside)
    command = [sys.executable, "-c", PROGRAM, str(path), str(tmp_path / "out.onnx")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 1.5 * size, f"{int(run.stdout) / size:.2f} times"
    assert (tmp_path / "out.onnx.data").exists() is not inside
    before, after = (ort.InferenceSession(file) for file in (path, tmp_path / "out.onnx"))
    feeds = {"ids": np.array([[3, 5, 7]]), "past_key": np.zeros((1, *CACHE), np.float32)}
    logits, last = (session.run(["logits"], feeds)[0][:, -1:] for session in (before, after))
    np.testing.assert_allclose(last, logits, rtol=0, atol=1e-4 * float(np.abs(logits).max()))
