"""What a supervisor does with versions that others made served, and with loads that fail for a while."""

import hashlib
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http
from background import meanwhile
from published_models import SAMPLE, published, with_samples
from server_state import right, served
from tiny_models import expected_logits
from tritonclient.utils import InferenceServerException
from waiting import HEAL_S, wait_until

from benchmarks.drills.version_faults import change_weights
from clients.probing.server_probe import probe_server
from serving import version_selection
from serving.events import Events
from serving.local_server import Server, running_server
from serving.model_control_client import Control
from serving.parse_triton_arguments import Arguments
from serving.version_selection import Versions


def lie(model: Path, number: int, weights: Callable[[np.ndarray], np.ndarray]) -> None:
    """A copy of version 1 with other weights and a right hash; its sample is version 1's."""
    change_weights(Path(shutil.copytree(model / "1", model / str(number))), weights)


@contextmanager
def asking(server: Server, model: str) -> Iterator[list[float]]:
    """The times of wrong answers to requests that name no version."""
    wrong: list[float] = []

    def ask(end: threading.Event) -> None:
        image = http.InferInput("image", list(SAMPLE.shape), "UINT8")
        image.set_data_from_numpy(SAMPLE)
        with http.InferenceServerClient(server.http_url) as client:
            while not end.is_set():
                try:
                    logits = client.infer(model, [image]).as_numpy("logits")
                except InferenceServerException:  # refused: no answer is better than a wrong answer
                    time.sleep(0.05)
                    continue
                if not np.allclose(logits, expected_logits(SAMPLE), atol=0.01):
                    wrong.append(time.monotonic())

    with meanwhile(ask):
        yield wrong


@pytest.fixture(scope="module")
def supervised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """`linear` has one version with a sample, `bare` one without."""
    repository: Path = tmp_path_factory.mktemp("models")
    with_samples(published(repository, versions=1))
    bare = published(repository, versions=1, name="bare") / "config.pbtxt"
    bare.write_text(bare.read_text().replace('"probe"', '"another"'))
    with running_server(repository, supervised=True) as server:
        wait_until(lambda: right(server), "right")
        yield server, repository


@pytest.mark.live
def test_a_version_without_a_sample_is_not_compared_and_that_is_said_once(supervised: tuple[Server, Path]) -> None:
    server, repository = supervised
    wait_until(lambda: "every served version answers right: linear; not compared: bare 1" in server.log(), "told")
    time.sleep(2.5)  # two probes more
    assert server.log().count("model bare, version 1 is not compared: it has no sample beside it") == 1
    states = {each.model: each.state for each in probe_server(server.http_url, repositories=[repository]).versions}
    assert states == {"linear": "right", "bare": "not compared"}


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "sampled", "reason"),
    [
        (np.zeros_like, True, "expected the stored logits, found an error of"),
        (lambda weights: np.full_like(weights, np.inf), False, "expected finite numbers in logits, found NaN"),
    ],
    ids=["constant", "infinite without a sample"],
)
def test_a_lying_version_that_a_stranger_loads_gives_way(
    supervised: tuple[Server, Path], weights: Callable[[np.ndarray], np.ndarray], sampled: bool, reason: str
) -> None:
    server, repository = supervised
    model = repository / "linear"
    number = 1 + max(int(path.name) for path in model.iterdir() if path.name.isdecimal())
    lie(model, number, weights)
    if not sampled:
        manifest = json.loads((model / str(number) / "manifest.json").read_text())
        del manifest["files"]["sample.npz"]
        (model / str(number) / "manifest.json").write_text(json.dumps(manifest))
        (model / str(number) / "sample.npz").unlink()
    before = server.log().count("model linear is loaded again")
    with asking(server, "linear") as wrong:
        Control.at(server.http_url, server.grpc_url).load("linear", None, HEAL_S)
        wait_until(lambda: server.log().count("model linear is loaded again") > before, "given up")
        done = time.monotonic()
        wait_until(lambda: right(server) and served(server, "linear") == {"1"}, "right")
        time.sleep(1.0)
    assert wrong, "the drill is none unless the version lies"
    assert [each for each in wrong if each > done] == []
    assert f"model linear version {number} answers wrong ({reason}" in server.log()
    assert f"model linear, version {number} is bad: {model / str(number)}: {reason}" in server.log()
    assert server.log().count("started the server") == 1


@pytest.mark.live
@pytest.mark.slow
def test_broken_files_that_a_stranger_loads_are_found_by_their_hashes(supervised: tuple[Server, Path]) -> None:
    """The answers are right; the file is not the published one."""
    server, repository = supervised
    model = repository / "linear"
    number = 1 + max(int(path.name) for path in model.iterdir() if path.name.isdecimal())
    lie(model, number, lambda weights: weights)
    (model / str(number) / "model.onnx").write_bytes((model / "1" / "model.onnx").read_bytes() + b"\x72\x00")
    before = server.log().count("model linear is loaded again")
    Control.at(server.http_url, server.grpc_url).load("linear", None, HEAL_S)
    wait_until(lambda: server.log().count("model linear is loaded again") > before, "given up")
    wait_until(lambda: right(server) and served(server, "linear") == {"1"}, "right")
    assert re.search(rf"model linear {model}/{number}/model.onnx: expected the SHA-256 ", server.log())


LOADS_WITH_A_FLAG = """
import triton_python_backend_utils as pb_utils
from pathlib import Path

class TritonPythonModel:
    def initialize(self, args):
        if not Path({flag!r}).exists():
            raise pb_utils.TritonModelException("no room")

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(each, "x").as_numpy())])
            for each in requests
        ]
"""


@pytest.mark.live
def test_a_load_that_failed_is_tried_again_and_repaired_files_are_served_unattended(tmp_path: Path) -> None:
    """With nothing else to serve, as with a full /dev/shm; another model is served meanwhile."""
    flag, repository = tmp_path / "flag", tmp_path / "models"
    with_samples(published(repository, versions=1))
    folder = repository / "late" / "1"
    folder.mkdir(parents=True)
    code = LOADS_WITH_A_FLAG.format(flag=str(flag)).encode()
    (folder / "model.py").write_bytes(code)
    files = {"model.py": hashlib.sha256(code).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({"file": "model.py", "files": files}))
    (folder.parent / "config.pbtxt").write_text(
        'name: "late" backend: "python" input [{ name: "x" data_type: TYPE_FP32 dims: [2] }] '
        'output [{ name: "y" data_type: TYPE_FP32 dims: [2] }] instance_group [{ kind: KIND_CPU count: 1 }]'
    )
    path = published(repository, versions=1, name="half") / "1" / "model.onnx"
    content = path.read_bytes()
    path.write_bytes(b"half")
    lenient = ["--strict-readiness=false"]  # Triton says not ready after each refused load
    with running_server(repository, lenient, supervised=True, timeout_s=3 * HEAL_S) as server:  # three starts
        bad = "model late, version 1 is bad: "
        wait_until(lambda: right(server) and server.log().count(bad) >= 2, "refused at the start and again")
        assert f"{folder}: expected a version that loads, the server refuses it; serving nothing" in server.log()
        flag.touch()
        wait_until(lambda: served(server, "late") == {"1"}, "served")
        assert right(server)
        assert not served(server, "half")
        path.write_bytes(content)
        wait_until(lambda: right(server) and served(server, "half") == {"1"}, "served")
        assert server.log().count("started the server") == 3, "twice refused at a start"


def test_a_model_without_an_intact_version_is_due_when_its_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_selection, "LOOK_S", 0.0)
    model = published(tmp_path, versions=1)
    versions, path = Versions(Arguments([f"--model-repository={tmp_path}"]), Events(None)), model / "1" / "model.onnx"
    content = path.read_bytes()
    for damage in (path.unlink, lambda: path.write_bytes(b"half")):
        damage()
        assert (versions.plan("linear").versions, versions.due()) == ((), [])
        path.write_bytes(content)
        assert (versions.due(), versions.due()) == (["linear"], [])
        assert versions.plan("linear").versions == (1,)
    (model / "2").symlink_to("nowhere")
    assert (versions.plan("linear").versions, versions.due()) == ((), [])
    (model / "2").unlink()
    assert (versions.due(), versions.plan("linear").versions) == (["linear"], (1,))
    path.unlink()
    assert (versions.due(), versions.due()) == ([], []), "served, whatever the disk has"


def test_only_refused_loads_are_tried_again(tmp_path: Path) -> None:
    model = published(tmp_path, versions=2)
    versions = Versions(Arguments([f"--model-repository={tmp_path}"]), Events(None))
    assert versions.plan("linear").versions == (1, 2)
    assert versions.replan("linear", {2: "it lies"}).versions == (1,)
    assert versions.load_failed("linear", 1).versions == (1,), "somebody may have killed its process"
    versions.answered([("linear", 1)])
    assert [versions.load_failed("linear", 1).versions for _ in range(2)] == [(1,), ()]
    assert (versions.due(), versions.plans()["linear"].versions) == ([], ())
    assert versions.due() == [], "a start does not shorten the pause"
    wait_until(lambda: versions.due() == ["linear"], "due")
    assert versions.plan("linear").versions == (1,)
    versions.forget()
    assert versions.plan("linear").versions == (1, 2)
    assert versions.has_others("linear", {2: "slow"})
    assert not versions.has_others("linear", {1: "slow", 2: "slow"})
    assert versions.unchecked([("linear", 1), ("linear", 2)]) == []
    (model / "2" / "model.onnx").write_bytes(b"")
    assert versions.unchecked([("linear", 1), ("linear", 2)]) == [("linear", 2)]
    (failure,) = versions.check_files("linear", 2)
    assert failure.broken
    assert "expected the SHA-256" in failure.reason
    assert versions.unchecked([("linear", 2)]) == [], "it was looked at"
