from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from foreign_networks import manifest_of, parse, run, wrote

from common.sample import Sample
from export import time_files
from export.compiler import pipeline
from export.compiler.proof import compare
from export.compiler.proof.inputs import Feeds
from export.compiler.proof.runner import Runner
from export.publishing.sidecar import staged


@pytest.mark.slow
def test_a_file_is_written_with_its_manifest_and_a_sample(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.onnx"
    monkeypatch.setattr(time_files, "SECONDS", 0.2)
    result = wrote(encoder, "-o", out, "--dims", "batch=1,seq=24", "--require", "read-rows,absorb-queries", "--time")
    for line in ("multiply-accumulates at batch=1, seq=24", "Proved float64", "Proved float32", "times as fast"):
        assert line in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "out.npz", "out.onnx"]
    manifest = json.loads(out.with_suffix(".json").read_text())
    assert manifest["rewrites"] == ["fold-affine", "read-rows", "absorb-queries", "carry-biases", "tidy"]
    assert manifest["macs"]["absorb-queries"] < 0.56 * manifest["macs"]["before"]
    sample = Sample.read(out.with_suffix(".npz"))
    (found,) = ort.InferenceSession(out).run(None, sample.inputs)
    np.testing.assert_allclose(found, sample.outputs["y"], rtol=1e-4, atol=1e-5)


def test_onnx_runtime_may_be_the_package_for_gpus(
    tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name == "onnxruntime":
            raise metadata.PackageNotFoundError(name)
        return metadata.version(name)

    monkeypatch.setattr("export.rewrite_file.version", version)
    manifest = manifest_of(tokens, "-o", tmp_path / "out.onnx", "--read", "y[:,0]")
    assert manifest["versions"]["onnxruntime"] == ort.__version__


def test_a_file_without_gain_says_that_a_part_may_be_read(tokens: Path, tmp_path: Path) -> None:
    refused = run(tokens, "-o", tmp_path / "out.onnx")
    assert refused.exit_code == 3
    *_, stopped, line = refused.output.splitlines()
    assert line.endswith("found none; try --read 'OUTPUT[:,0]' if you use only a part of an output; nothing written")
    assert stopped == "  split-products: y (graph output): no reader separates the output of a linear layer"
    assert [*tmp_path.iterdir()] == [tokens]
    assert manifest_of(tokens, "-o", tmp_path / "out.onnx", "--read", "y[:,0]")["reads"] == ["y[:,0]"]


@pytest.mark.slow
def test_inputs_may_be_given(encoder: Path, tmp_path: Path) -> None:
    given = tmp_path / "given.npz"
    ids = np.arange(12).reshape(2, 6)
    np.savez(given, input_ids=ids, attention_mask=np.ones_like(ids))
    result = run(encoder, "-o", tmp_path / "out.onnx", "--inputs", given, "--json")
    assert json.loads(result.output)["proof_inputs"].startswith(f"{given}; drawn at ")
    np.savez(given, input_ids=ids)
    assert (
        "expected the inputs input_ids, attention_mask"
        in run(encoder, "-o", tmp_path / "out.onnx", "--inputs", given).output
    )


@pytest.mark.slow
def test_a_failed_proof_writes_nothing(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compare.TOLERANCES, "float64", 0.0)
    result = run(encoder, "-o", tmp_path / "out.onnx")
    assert (result.exit_code, list(tmp_path.iterdir())) == (5, [])
    assert "expected an error of at most 0e+00" in result.output


@pytest.mark.parametrize("read", ["y[:,15]", "y[:,12:16]"])
def test_a_read_beyond_the_first_sizes_is_proved_at_larger_ones(tokens: Path, tmp_path: Path, read: str) -> None:
    assert "S=32" in manifest_of(tokens, "-o", tmp_path / "out.onnx", "--read", read)["proof_inputs"]


def test_the_standard_domain_may_have_its_long_name(tokens: Path, tmp_path: Path) -> None:
    proto = onnx.load(tokens)
    proto.opset_import[0].domain = "ai.onnx"
    onnx.save(proto, tokens)
    wrote(tokens, "-o", tmp_path / "out.onnx", "--read", "y[:,0]")


def test_a_file_whose_weights_are_inputs_gives_a_valid_file(tokens: Path, tmp_path: Path) -> None:
    proto = onnx.load(tokens)
    proto.ir_version = 3
    for tensor in proto.graph.initializer:
        proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    onnx.checker.check_model(proto)
    onnx.save(proto, tokens)
    wrote(tokens, "-o", tmp_path / "out.onnx", "--read", "y[:,0]")
    onnx.checker.check_model(tmp_path / "out.onnx")
    assert [value.name for value in ort.InferenceSession(tmp_path / "out.onnx").get_inputs()] == ["a"]


def test_a_part_of_an_output_that_is_an_input_is_refused(tokens: Path, tmp_path: Path) -> None:
    proto = onnx.load(tokens)
    proto.graph.output.append(proto.graph.input[0])
    onnx.save(proto, tokens)
    result = run(tokens, "-o", tmp_path / "out.onnx", "--read", "y[:,0]", "--read", "a[:,0]")
    assert result.exit_code == 2
    assert "read: expected an output that a node computes, found the input a[:,0]" in result.output


def test_files_of_another_origin_stay(tokens: Path, tmp_path: Path) -> None:
    """OUT.json and OUT.npz are not named on the command line."""
    arguments = tokens, "-o", tmp_path / "out.onnx", "--read", "y[:,0]"
    np.savez(tmp_path / "arrays.npz", a=np.ones(3))
    for name, content, what in [
        ("out.json", b'{"rows": [1, 2]}', "manifest"),
        ("out.npz", (tmp_path / "arrays.npz").read_bytes(), "sample"),
        ("out.onnx.data", b"weights", "weights"),
    ]:
        (tmp_path / name).write_bytes(content)
        result = run(*arguments)
        assert (result.exit_code, (tmp_path / name).read_bytes()) == (1, content)
        assert f"{name}: expected nothing or the {what} of an export, found a file; nothing written" in result.output
        assert not (tmp_path / "out.onnx").exists()
        (tmp_path / name).unlink()
    wrote(*arguments)
    wrote(*arguments)  # replaces its own
    wrote(*arguments[:-1], "y[:,1]")


PROGRAM = """
import sys, time
from pathlib import Path
from export.publishing.sidecar import staged
with staged(Path(sys.argv[1])) as path:
    path.write_bytes(bytes(1000))
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_run_that_is_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    """SIGKILL cannot be answered; the next run cleans up, but not what is in use."""
    hearing = ["env", "--default-signal=HUP"]  # also where nohup runs the tests
    command = [*hearing, sys.executable, "-c", PROGRAM, str(out := tmp_path / "out[1].onnx")]
    signals = {signal.SIGTERM: 0, signal.SIGHUP: 0, signal.SIGINT: 0, signal.SIGKILL: 1}
    with ExitStack() as stack:
        *ended, other = (stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE)) for _ in range(5))
        for process in (*ended, other):
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for rest, (process, (number, left)) in enumerate(zip(reversed(ended), signals.items(), strict=True)):
            process.send_signal(number)
            assert process.wait() != 0
            assert len([*tmp_path.iterdir()]) == 4 - rest + left
        with staged(out) as path:
            assert len([*tmp_path.iterdir()]) == 2
            path.write_bytes(b"new")
        other.terminate()
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_runs_with_one_output_at_once_do_not_remove_one_anothers_files(tmp_path: Path) -> None:
    def write_often(content: bytes) -> None:
        for _ in range(100):
            with staged(tmp_path / "out.onnx") as path:
                path.write_bytes(content)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write_often, (b"a", b"b", b"c")))
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]


def test_a_batch_that_is_declared_free_but_is_1_is_named(tmp_path: Path) -> None:
    network = parse(
        """<ir_version: 8, opset_import: ["": 17]> g (float[batch, n, 4] x)
            => (float[batch, n, 4] y, float[p, q, 4] z) {
            y = MatMul(x, w) r = Reshape(x, one) z = Add(r, x) }""",
        w=np.eye(4, dtype=np.float32),
        one=np.array([1, -1, 4]),
    )
    ir.save(network, path := tmp_path / "in.onnx")
    arguments = path, "-o", tmp_path / "out.onnx", "--read", "y[:,0]", "--read", "z"
    result = run(*arguments)
    assert result.exit_code == 2
    assert "expected the file to run at any size that it declares free: " in result.output
    assert "; --dims batch=1 gives its size" in result.output
    wrote(*arguments, "--dims", "batch=1")


def test_stale_inner_shapes_are_named(tmp_path: Path) -> None:
    """ONNX Runtime puts two values of one declared shape into one place."""
    network = parse(
        """<ir_version: 8, opset_import: ["": 17]> g (float[b, 4] x, bool[b] m) => (float[b, 4] y) {
            a = Compress<axis = 0>(x, m) c = MatMul(a, w) r = ReduceSum<keepdims = 1>(c) e = Mul(x, r)
            f = MatMul(e, w) k = MatMul(f, w) y = MatMul(k, w) }""",
        w=np.eye(4, dtype=np.float32),
    )
    proto = ir.to_proto(network)
    for name in "ac":
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["b", 4]))
    onnx.save(proto, path := tmp_path / "in.onnx")
    np.savez(given := tmp_path / "given.npz", x=np.ones((3, 4), np.float32), m=np.array([True, False, True]))
    result = run(path, "-o", tmp_path / "out.onnx", "--read", "y[:,0]", "--inputs", given)
    assert (
        "Mul '': the file declares an inner shape that is stale, {2,4} != {3,4}; without graph.value_info"
        in result.output
    )
    assert "--dims" not in result.output


def test_no_size_is_asked_for_an_axis_that_is_fixed_at_0(tmp_path: Path) -> None:
    """Some exporters write 0 for a free axis; ONNX Runtime takes the number as it is."""
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[0, 5, 4] x) => (float[0, 5, 4] y) { y = MatMul(x, w) }'
    onnx.save(ir.to_proto(parse(text, w=np.eye(4, dtype=np.float32))), path := tmp_path / "in.onnx")
    result = run(path, "-o", tmp_path / "out.onnx", "--read", "y[:,0]")
    assert result.exit_code == 2
    assert "Got: 1 Expected: 0" in result.output
    assert "--dims" not in result.output


def test_given_inputs_may_be_the_only_ones(tmp_path: Path) -> None:
    """A detector answers noise with 7e-6, which float32 does not resolve; here the numbers cancel."""
    network = parse(
        """<ir_version: 8, opset_import: ["": 17]> g (float[b, n, 4] x) => (float[b, n, 4] y) {
            h = MatMul(x, w) s = Mul(h, h) p = Add(s, big) r = Sqrt(p) y = Sub(r, root) }""",
        w=np.eye(4, dtype=np.float32),
        big=np.array([1e8], np.float32),
        root=np.array([1e4], np.float32),
    )
    ir.save(network, path := tmp_path / "in.onnx")
    np.savez(given := tmp_path / "given.npz", x=np.full((2, 3, 4), 3e5, np.float32))
    arguments = path, "-o", tmp_path / "out.onnx", "--read", "y[:,0]"
    for proof in "float64", "float32":
        refused = run(*arguments, "--inputs", given)
        assert refused.exit_code in (4, 5)
        assert "--inputs FILE.npz --inputs-only takes your inputs alone" in refused.output
        manifest = manifest_of(*arguments, "--inputs", given, "--inputs-only", "--proof", proof)
        assert manifest["proof_inputs"] == str(given)
    assert "--inputs-only: expected --inputs FILE.npz, too" in run(*arguments, "--inputs-only").output


def test_a_slower_file_is_not_written(tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Runner.call

    def slow(self: Runner, feeds: Feeds) -> Callable[[], object]:
        call = whole(self, feeds)

        def later() -> object:
            time.sleep(0.01)
            return call()

        return later if self.path.name == "out.onnx" else call

    monkeypatch.setattr(Runner, "call", slow)
    monkeypatch.setattr(time_files, "SECONDS", 0.2)
    result = run(tokens, "-o", tmp_path / "out.onnx", "--read", "y[:,0]", "--dims", "S=8", "--time")
    assert (result.exit_code, [*tmp_path.iterdir()]) == (5, [tokens])
    assert "expected a file that is no slower than the original, found B=1, S=8, 1 thread: " in result.output


def test_a_manifest_that_cannot_be_written_leaves_nothing(tokens: Path, tmp_path: Path) -> None:
    (tmp_path / "out.json").mkdir()
    result = run(tokens, "-o", tmp_path / "out.onnx", "--read", "y[:,0]")
    assert (result.exit_code, len([*tmp_path.iterdir()])) == (2, 2)
    assert "out.json: expected a file, found a folder" in result.output


def test_given_inputs_are_not_overwritten(tokens: Path, tmp_path: Path) -> None:
    np.savez(given := tmp_path / "out.npz", a=np.ones((1, 4, 16), np.float32))
    before = given.read_bytes()
    result = run(tokens, "-o", tmp_path / "out.onnx", "--inputs", given, "--read", "y[:,0]")
    assert (result.exit_code, given.read_bytes()) == (2, before)
    assert f"expected other files than those that are read, found {given}" in result.output


def test_given_inputs_that_are_no_archive_are_named(tokens: Path, tmp_path: Path) -> None:
    np.savez(given := tmp_path / "given.npz", a=np.ones((1, 4, 16), np.float32))
    whole = given.read_bytes()
    np.save(tmp_path / "single.npy", np.ones(3))
    other = "another kind of file"
    contents = [(whole[:-40], other), (whole[:200] + b"damage" + whole[206:], "Bad CRC-32"), (b"text", other)]
    for content, reason in [*contents, ((tmp_path / "single.npy").read_bytes(), other)]:
        given.write_bytes(content)
        result = run(tokens, "-o", tmp_path / "out.onnx", "--inputs", given, "--read", "y[:,0]")
        assert result.exit_code == 2
        assert f"{given}: expected an .npz file of arrays, found {reason}" in result.output


def test_the_sizes_of_given_inputs_count_as_memory(
    tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.compiler.proof.memory.free_memory", lambda: 1_000_000)
    np.savez(given := tmp_path / "given.npz", a=np.ones((200, 60, 16), np.float32))
    arguments = tokens, "-o", tmp_path / "out.onnx", "--read", "y[:,0]"
    assert "proof in double: expected to need at most" in run(*arguments, "--inputs", given).output
    wrote(*arguments)


def test_the_passes_run_once_and_in_their_own_order(tokens: Path) -> None:
    rewritten = pipeline.rewrite(ir.load(tokens), ["y[:,0]"], ("absorb-queries", "read-rows", "read-rows"))
    assert [step.name for step in rewritten.steps] == ["read-rows", "absorb-queries"]
