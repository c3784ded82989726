"""A server joins the requests to a stranger's network only if their rows do not depend on one another."""

from pathlib import Path

import onnx
import pytest
from onnx_text import parsed
from operating import ok

from export.publishing.publish import read_config

HEAD = '<ir_version: 9, opset_import: ["" : 17]>\n'
INPUTS = "g (float[n, 4] x, float[m, 4] z) => "
APART = {
    "a mean over rows": (
        INPUTS + "(float[n, 4] y) { mean = ReduceMean <axes = [0]> (x)  sums = Add (x, z)  y = Sub (sums, mean) }"
    ),
    "shares of a batch": INPUTS + "(float[n, 4] y) { sums = Add (x, z)  y = Softmax <axis = 0> (sums) }",
    "running sums": INPUTS
    + "(float[n, 4] y) { sums = Add (x, z)  axis = Constant <value_int = 0> ()  y = CumSum (sums, axis) }",
    # As of texts and pictures: other requests' rows would be a request's columns.
    "similarities": INPUTS + "(float[n, m] y) { turned = Transpose <perm = [1, 0]> (z)  y = MatMul (x, turned) }",
    "similarities of one axis": (
        "g (float[n, 4] x, float[n, 4] z) => (float[n, n] y) "
        "{ turned = Transpose <perm = [1, 0]> (z)  y = MatMul (x, turned) }"
    ),
    "the number of rows": INPUTS
    + "(float[n, 4] y) { rows = Shape <end = 1> (x)  n = Cast <to = 1> (rows)  all = Add (x, z)  y = Mul (all, n) }",
    "the rows' order": INPUTS
    + "(float[n, 4] y) { all = Add (x, z)  at = Constant <value_int = -1> () "
    + "last = Gather (all, at)  y = Add (all, last) }",
}


def published(text: str, folder: Path) -> str:
    onnx.save(parsed(HEAD + text), folder / "in.onnx")
    return ok(folder / "models", "publish", str(folder / "in.onnx"), "--name", "net")


@pytest.mark.parametrize("text", APART.values(), ids=APART)
def test_rows_that_depend_on_one_another_run_apart(text: str, tmp_path: Path) -> None:
    assert "Requests run apart: " in published(text, tmp_path)
    config = read_config(tmp_path / "models" / "net")
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")


def test_inputs_that_may_differ_in_their_rows_stay_free(tmp_path: Path) -> None:
    """As two encoders in one file: a client asks for two texts and three pictures."""
    told = published(INPUTS + "(float[n, 4] a, float[m, 4] b) { a = Relu (x)  b = Relu (z) }", tmp_path)
    assert "Requests run apart: the inputs of a request may differ in their rows" in told
    assert read_config(tmp_path / "models" / "net").max_batch_size == 0


def test_rows_are_joined_whatever_their_axes_are_called(tmp_path: Path) -> None:
    """Exporters give each input a name of its own, `unk__12`."""
    told = published(INPUTS + "(float[k, 4] y) { sums = Add (x, z)  y = Softmax <axis = 1> (sums) }", tmp_path)
    assert "Requests of equal shapes run together: answers differ by " in told
    assert read_config(tmp_path / "models" / "net").max_batch_size == 256
