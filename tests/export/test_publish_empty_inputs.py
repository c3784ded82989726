"""A file that ends ONNX Runtime's process on inputs without elements: tried at publication, refused by the server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.http as http
from commands import ok
from onnx_text import parsed

from common.repository import read_manifest
from export.publishing.artifact import read_version
from export.publishing.empty_inputs import never_empty
from export.publishing.manifest import read_manifest as typed_manifest
from export.repository import repository as command
from serving.backends.batching import Array, RunFailed
from serving.backends.config_check import ModelRefused
from serving.backends.config_check import Tensor as Served
from serving.backends.empty_axis_guard import EmptyAxisGuard, guard_empty_axes
from serving.local_server import running_server

# ONNX Runtime's GRU divides by the numbers of steps and of rows. Triton joins requests of `rows`, not of `whole`.
NETWORKS = {
    "rows": """(float[b, n, 2] x) => (float[b, n, 3] y) {
        t = Transpose<perm = [1, 0, 2]>(x) h = GRU<hidden_size = 3>(t, w, r)
        s = Squeeze(h, one) y = Transpose<perm = [1, 0, 2]>(s) }""",
    "whole": "(float[n, b, 2] x) => (float[1, b, 3] y) { all, y = GRU<hidden_size = 3>(x, w, r) }",
    "sound": "(float[b, n, 2] x) => (float[b, n, 2] y) { y = Relu(x) }",
}
NEVER = {"rows": {"x": [0, 1]}, "whole": {"x": [0, 1]}, "sound": None}
LINE = "Without elements (x on axis 0 or 1) the file ends ONNX Runtime's process: our backend refuses such requests"


def network(path: Path, body: str) -> Path:
    weights = {"w": np.ones((1, 9, 2), np.float32), "r": np.ones((1, 9, 3), np.float32), "one": np.array([1])}
    onnx.save(parsed(f'<ir_version: 8, opset_import: ["": 17]> g {body}', **weights), path)
    return path


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, str]]:
    """The repository, and what the publication of each network said."""
    folder, said = tmp_path_factory.mktemp("emptied"), {}
    for name, body in NETWORKS.items():
        file = network(folder / f"{name}.onnx", body)
        where = ("--repository", folder / "models", "--server", "127.0.0.1:9")
        said[name] = ok(command, "publish", file, "--name", name, *where).output
    return folder / "models", said


@pytest.mark.parametrize("name", NETWORKS)
def test_a_publication_tries_each_free_axis(name: str, printed: tuple[Path, Mapping[str, str]]) -> None:
    models, said = printed
    folder = models / name / "1"
    assert read_manifest(folder / "manifest.json").get("never_empty") == NEVER[name]
    assert never_empty(read_version(folder)) == (NEVER[name] or {})
    assert (LINE in said[name].splitlines()) == (name != "sound")


@pytest.mark.live
def test_an_empty_request_ends_no_process(printed: tuple[Path, Mapping[str, str]]) -> None:
    refused = [("rows", [1, 0, 2], 1), ("whole", [0, 1, 2], 0)]
    with running_server(printed[0]) as server:
        client = http.InferenceServerClient(server.http_url)
        for name, shape, axis in refused:
            with pytest.raises(Exception, match=rf"input 'x': expected at least 1 on axis {axis}, found the shape"):
                ask(client, name, shape)
            assert ask(client, name, [2, 3, 2]).size
        with pytest.raises(Exception, match="input byte size mismatch"):  # Triton's own
            ask(client, "rows", [0, 3, 2])
        assert ask(client, "sound", [1, 0, 2]).shape == (1, 0, 2)


def ask(client: http.InferenceServerClient, name: str, shape: Sequence[int]) -> Array:
    given = http.InferInput("x", [*shape], "FP32").set_data_from_numpy(np.ones(shape, np.float32))
    answer: Array = client.infer(name, [given]).as_numpy("y")
    return answer


class Counting:
    inputs: Mapping[str, Served] = {}
    outputs: Mapping[str, Served] = {}
    runs = 0

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        self.runs += 1
        return []


def test_only_the_named_axes_are_refused() -> None:
    engine = Counting()
    held = EmptyAxisGuard(engine, {"x": [0, 2], "absent": [0]})
    for shape in [(1, 0, 2), (3,), ()]:
        held.run([], {"x": np.zeros(shape), "other": np.zeros((0, 0, 0))})
    assert engine.runs == 3
    for shape in [(1, 1, 0), (0,)]:
        with pytest.raises(RunFailed, match="input 'x': expected at least 1 on axis"):
            held.run([], {"x": np.zeros(shape)})
    assert engine.runs == 3


@pytest.mark.parametrize("told", [["x"], {"x": 1}, {"x": ["1"]}, {"x": [-1]}])
def test_another_form_is_refused(told: object, printed: tuple[Path, Mapping[str, str]], tmp_path: Path) -> None:
    whole = json.loads((printed[0] / "sound" / "1" / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(whole | {"never_empty": told}))
    with pytest.raises(ModelRefused, match=r"manifest\.json, 'never_empty': expected the axes of inputs, found"):
        guard_empty_axes(Counting(), tmp_path)
    with pytest.raises(Exception, match="expected the manifest of an export, found never_empty"):
        typed_manifest(tmp_path / "manifest.json")
    (tmp_path / "manifest.json").write_text(json.dumps(whole))
    engine = Counting()
    assert guard_empty_axes(engine, tmp_path) is engine
    assert guard_empty_axes(engine, tmp_path / "none") is engine
