import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.http as http
from background import meanwhile
from commands import told
from tritonclient.utils import InferenceServerException

from clients.probe import probe
from clients.probing.server_probe import probe_server
from clients.probing.verdicts import Probe
from common.sample import Sample
from serving.local_server import Server, running_server
from serving.stub_processes import ServerProcesses

pytestmark = pytest.mark.live
PATIENCE_S = 5.0  # where the probe's own second is not tested
COMPLETE = ["--disable-auto-complete-config"]


@pytest.fixture
def own(repository: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(repository, tmp_path / "models"))


def states(probe: Probe) -> set[str]:
    return {version.state for version in probe.versions}


def answered(server: Server) -> dict[str, int]:
    """Requests of each model that Triton has counted: it counts a request after it has answered."""
    with urllib.request.urlopen(f"http://{server.http_url}/v2/models/stats", timeout=PATIENCE_S) as answer:
        return {each["name"]: each["inference_stats"]["success"]["count"] for each in json.load(answer)["model_stats"]}


def replace_in_config(repository: Path, old: str, new: str, model: str = "vitbn") -> None:
    path = repository / model / "config.pbtxt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_command_answers_within_a_second_with_json_and_an_exit_code(live_server: Server) -> None:
    code, printed = told(probe, "--url", live_server.http_url, "--timeout", PATIENCE_S)
    found = json.loads(printed)
    assert (code, found["ok"]) == (0, True)
    (version,) = found["versions"]
    assert (version["model"], version["version"], version["state"]) == ("vitbn", "1", "right")
    assert version["max_abs_error"] <= 1e-4


def test_an_absent_server_fails_the_probe() -> None:
    code, printed = told(probe, "--url", "127.0.0.1:1")
    found = json.loads(printed)
    assert (code, found["ok"]) == (1, False)
    assert "Connection refused" in found["reason"]


def test_a_containers_first_process_ends_at_sigterm() -> None:
    """Such a process ignores a signal without a handler."""
    command = [sys.executable, "clients/probe.py", "--url", "127.0.0.1:1", "--every", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        running.terminate()
        assert running.wait(30) == 0


def test_a_probe_without_descriptors_ends_and_says_nothing_of_the_server() -> None:
    """A supervisor would start a right server again."""
    command = [sys.executable, "-m", "clients.probe", "--url", "127.0.0.1:1", "--every", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as probing:
        assert probing.stdout
        assert probing.stderr
        assert "Connection refused" in probing.stdout.readline()
        process = psutil.Process(probing.pid)
        process.rlimit(resource.RLIMIT_NOFILE, (3, 3))
        assert probing.wait(60) == 1
        assert "Too many open files" in probing.stderr.read()
        assert "Too many open files" not in probing.stdout.read()


def test_a_model_that_is_asked_for_must_be_served(live_server: Server) -> None:
    assert probe_server(live_server.http_url, ["vitbn"], timeout_s=PATIENCE_S).ok
    missing = probe_server(live_server.http_url, ["vit"], timeout_s=PATIENCE_S)
    assert (missing.ok, missing.reason) == (False, "model 'vit' is not served")


def test_every_served_version_is_asked_and_a_wrong_one_found(own: Path) -> None:
    """A version without a stored sample must only answer."""
    shutil.copytree(own / "vitbn", own / "plain")
    replace_in_config(own, '"probe"', '"another"', "plain")
    replace_in_config(own, 'name: "vitbn"', 'name: "plain"', "plain")
    shutil.copytree(own / "vitbn/1", own / "vitbn/2")
    answers = Sample.read(own / "vitbn/1/sample.npz").outputs["logits"][0].tolist()
    wrong = json.dumps([answers[0] + 0.5, *answers[1:]])
    # JSON in a quoted string
    replace_in_config(own, '{\\"1\\": ', f'{{\\"2\\": {{\\"logits\\": {wrong}, \\"tolerance\\": 0.01}}, \\"1\\": ')
    with running_server(own, COMPLETE) as server:
        found = probe_server(server.http_url, timeout_s=PATIENCE_S)
    assert {(version.model, version.version, version.state) for version in found.versions} == {
        ("plain", "1", "not compared"),
        ("vitbn", "1", "right"),
        ("vitbn", "2", "wrong"),
    }
    assert not found.ok
    (bad,) = (version for version in found.versions if version.state == "wrong")
    assert bad.max_abs_error == pytest.approx(0.5, abs=1e-3)


def test_a_dead_or_stopped_model_fails_though_the_server_says_ready(own: Path) -> None:
    faults = {"vitbn": signal.SIGKILL, "second": signal.SIGSTOP}
    shutil.copytree(own / "vitbn", own / "second")
    replace_in_config(own, 'name: "vitbn"', 'name: "second"', "second")
    with running_server(own, COMPLETE) as server:
        before = answered(server)
        assert probe_server(server.http_url, timeout_s=PATIENCE_S).ok
        while any(count == before[model] for model, count in answered(server).items()):
            time.sleep(0.01)  # an answer that is counted during the next probe says that its model is busy
        stubs = ServerProcesses(server.pid).model_stubs()
        for stub in stubs:
            os.kill(stub.process.pid, faults[stub.model])
        for path in ("health/ready", *(f"models/{model}/ready" for model in faults)):
            with urllib.request.urlopen(f"http://{server.http_url}/v2/{path}", timeout=PATIENCE_S) as answer:
                assert answer.status == 200
        found = probe_server(server.http_url)
        assert {version.model: version.state for version in found.versions} == dict.fromkeys(faults, "failed")
        assert not found.ok
        for pid in (*(stub.process.pid for stub in stubs), server.pid):  # the faults keep them from ending
            os.kill(pid, signal.SIGKILL)


@contextmanager
def flood(server: Server, threads: int = 3) -> Iterator[None]:
    def ask(end: threading.Event) -> None:
        image = http.InferInput("image", [256, 1, 28, 28], "UINT8")
        image.set_data_from_numpy(np.zeros((256, 1, 28, 28), np.uint8))
        with http.InferenceServerClient(server.http_url) as client:
            while not end.is_set():
                try:
                    client.infer("vitbn", [image])
                except InferenceServerException:
                    continue

    with meanwhile(ask, threads):
        yield


@pytest.mark.slow
def test_a_version_that_refuses_while_it_answers_others_is_busy_and_passes(own: Path) -> None:
    text = (own / "vitbn/config.pbtxt").read_text()
    start = text.index("dynamic_batching {")
    end = text.index("\n}", start) + 2
    policy = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    (own / "vitbn/config.pbtxt").write_text(text[:start] + policy + text[end:])
    with running_server(own, COMPLETE) as server, flood(server):
        found = [probe_server(server.http_url, timeout_s=PATIENCE_S) for _ in range(12)]
    assert all(each.ok for each in found), found
    assert "busy" in set().union(*map(states, found))
