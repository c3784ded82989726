import hashlib
import http.client
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from published_models import DAMAGES, published, truncate
from server_state import right, served
from waiting import HEAL_S, wait_until

from benchmarks.drills.drill_setup import lives, prober, triton
from clients.probing.server_probe import probe_server
from serving import control_key
from serving.child import Child
from serving.local_server import Server, running_server
from serving.model_control_client import Control
from serving.ports import answers, free_ports
from serving.stub_processes import ServerProcesses, Stub

pytestmark = pytest.mark.live
STOP_S = 6.0
LATEST = "latest { num_versions: 2 }"
DAMAGED = ("bit flip", "config truncated", "labels missing")  # test_whole.py has all


def stubs(server: Server) -> list[Stub]:
    return ServerProcesses(triton(server).pid).model_stubs()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("models")
    published(folder, versions=2)
    published(folder, versions=1, name="pair", instances="instance_group [{ kind: KIND_AUTO count: 2 }]")
    return folder


@pytest.fixture(scope="module")
def supervised(repository: Path) -> Iterator[Server]:
    with running_server(repository, supervised=True) as server:
        wait_until(lambda: right(server), "right")
        yield server


def stop_stub(server: Server) -> None:
    stubs(server)[0].process.suspend()


def nest_json(server: Server) -> None:
    headers = {"Content-Type": "application/json"}
    gone = suppress(OSError, http.client.HTTPException)
    with closing(http.client.HTTPConnection(server.http_url, timeout=20)) as connection, gone:
        connection.request("POST", "/v2/models/linear/infer", b"[" * 150_000, headers)
        connection.getresponse()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [stop_stub, nest_json])
def test_answers_are_right_again_unattended(supervised: Server, fault: Callable[[Server], None]) -> None:
    wait_until(lambda: right(supervised), "right before the fault")
    fault(supervised)
    wait_until(lambda: right(supervised) and served(supervised) == {"1", "2"}, "right", 2 * HEAL_S)


@pytest.mark.slow
def test_a_model_of_two_instances_gets_its_dead_process_back(supervised: Server) -> None:
    """The other instance may answer the probes."""

    def pair() -> set[psutil.Process]:
        return {stub.process for stub in stubs(supervised) if stub.model == "pair"}

    wait_until(lambda: right(supervised) and len(pair()) == 2, "whole before the fault")
    dead = pair().pop()
    before = supervised.log().count("model pair is loaded again")
    dead.kill()
    wait_until(lambda: supervised.log().count("model pair is loaded again") > before, "in the log")
    wait_until(lambda: len(pair() - {dead}) == 2 and right(supervised), "whole")


@pytest.mark.slow
def test_what_an_operator_loads_after_a_heal_is_served(supervised: Server, repository: Path) -> None:
    """The supervisor's own configuration lasts until then."""
    wait_until(lambda: right(supervised) and served(supervised) == {"1", "2"}, "right before the fault")
    heals, starts = (supervised.log().count(line) for line in ("model linear is loaded again", "started the server"))
    next(stub for stub in stubs(supervised) if stub.model == "linear").process.kill()
    wait_until(lambda: supervised.log().count("model linear is loaded again") > heals and right(supervised), "healed")
    path = repository / "linear" / "config.pbtxt"
    latest = path.read_text()
    for text, versions in ((latest.replace(LATEST, "specific { versions: [1] }"), {"1"}), (latest, {"1", "2"})):
        path.write_text(text)
        Control.at(supervised.http_url).load("linear", None, HEAL_S)
        wait_until(lambda expected=versions: right(supervised) and served(supervised) == expected, "served as asked")
    assert supervised.log().count("started the server") == starts, "no new server was needed"


@pytest.mark.slow
def test_a_supervisor_without_descriptors_starts_a_server_once_it_has_them(supervised: Server) -> None:
    wait_until(lambda: right(supervised), "right before the fault")
    first, supervisor = triton(supervised), psutil.Process(supervised.pid)
    family, before = first.children(recursive=True), supervised.log().count("next start in")
    soft, hard = supervisor.rlimit(resource.RLIMIT_NOFILE)
    supervisor.rlimit(resource.RLIMIT_NOFILE, (3, hard))
    first.kill()
    wait_until(lambda: supervised.log().count("next start in") > before, "a second try")
    assert "Too many open files" in supervised.log()
    assert not [each for each in family if lives(each)]
    supervisor.rlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wait_until(lambda: right(supervised), "right")
    assert supervisor.is_running()
    assert "Traceback" not in supervised.log()


@pytest.mark.slow
def test_each_act_has_a_line_in_the_log_and_a_metric(supervised: Server) -> None:
    """A process that dies during the start has its line, too. The other instance answers the probes then."""

    def metrics() -> str:
        with urllib.request.urlopen(f"http://{supervised.supervisor_url}/metrics", timeout=20) as answer:
            return str(answer.read().decode())

    wait_until(lambda: right(supervised), "right before the fault")
    deaths = metrics().count('server_ends_total{reason="died"}')
    before = supervised.log().count("the server died: signal 9 (Killed)")
    prefix = next(word for word in triton(supervised).cmdline() if "shm-region-prefix-name" in word).rpartition("=")[2]
    assert [*Path("/dev/shm").glob(f"{prefix}*")]
    lost = "model pair version 1 has lost process"
    losses = supervised.log().count(lost)
    triton(supervised).kill()
    wait_until(lambda: not right(supervised), "gone")
    while not right(supervised):  # without a pause: sooner than the supervisor
        pass
    next(stub for stub in stubs(supervised) if stub.model == "pair").process.kill()
    wait_until(lambda: supervised.log().count(lost) > losses, "in the log")
    assert supervised.log().count("the server died: signal 9 (Killed)") > before
    wait_until(lambda: "vitbn_supervisor_healthy 1.0" in metrics(), "healthy")
    assert deaths <= metrics().count('server_ends_total{reason="died"}') == 1
    assert not [*Path("/dev/shm").glob(f"{prefix}*")]


@pytest.mark.slow
def test_a_killed_prober_is_started_again(supervised: Server) -> None:
    (first := prober(supervised)).kill()
    wait_until(lambda: prober(supervised).pid != first.pid, "another prober")
    wait_until(lambda: answers(supervised.health_url), "healthy")


@pytest.mark.slow
def test_sighup_starts_another_server(supervised: Server) -> None:
    """As it does with `--servers`."""
    wait_until(lambda: right(supervised), "right before the signal")
    starts, first = supervised.log().count("started the server"), triton(supervised)
    os.kill(supervised.pid, signal.SIGHUP)
    wait_until(lambda: supervised.log().count("started the server") == starts + 1, "started again")
    wait_until(lambda: right(supervised), "right")
    assert not lives(first)
    assert "restarting" in supervised.log()


@pytest.mark.parametrize(
    ("limit", "option", "reason"),
    [
        ("64", "--log-verbose=0", "died: exit code 1: expected a limit of at least 128 open files, found 64"),
        (
            "1024",
            "--cache-config=foo,size=1048576",
            "refused: Invalid argument: unable to find 'libtritoncache_foo.so'",
        ),
        ("1024", "--verbose=1", "died: exit code 1: unrecognized option '--verbose=1'"),
        ("1024", "--log-verbose=yes", "died: exit code 1: Invalid option value. Got yes"),
    ],
    ids=["descriptors", "cache", "misspelt option", "its value"],
)
def test_a_start_that_cannot_work_is_told_and_not_repeated(
    tmp_path: Path, limit: str, option: str, reason: str
) -> None:
    published(tmp_path, versions=1)
    ports = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), free_ports(3), strict=True)]
    words = [sys.executable, "-m", "serving.serve", "--supervised", "--supervisor-port=0", *ports, option]
    command = f"ulimit -n {limit}; exec {shlex.join([*words, f'--model-repository={tmp_path}'])}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=HEAL_S)
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert f"supervisor: the server {reason}" in done.stderr
    assert lines[-1].endswith("supervisor: giving up: no start can work")
    assert done.stderr.count("started the server") == 1


def test_the_response_cache_of_the_wheel_works_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = published(tmp_path / "models", versions=1)
    config = model / "config.pbtxt"
    config.write_text(config.read_text() + " response_cache { enable: true }")
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with running_server(tmp_path / "models", ["--cache-config=local,size=1048576"], supervised=True) as server:
        wait_until(lambda: right(server), "right")

        def hits() -> object:
            with urllib.request.urlopen(f"http://{server.metrics_url}/metrics", timeout=20) as answer:
                hit = r'nv_cache_num_hits_per_model\{model="linear",version="1"\} [1-9]'
                return re.search(hit, answer.read().decode())

        wait_until(hits, "answered from the cache")
        assert server.log().count("started the server") == 1


@pytest.fixture(scope="module")
def over_damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository: Path = tmp_path_factory.mktemp("damaged")
    for name in DAMAGED:
        DAMAGES[name][0](published(repository, versions=3, name=name.replace(" ", "_")))
    files = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    with running_server(repository, supervised=True) as server:
        wait_until(
            lambda: (found := right(server)) and len({each.model for each in found.versions}) == len(DAMAGED),
            "right",
        )
        yield server
    assert files == {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}, "nothing is written"


@pytest.mark.parametrize("name", DAMAGED)
def test_the_start_serves_the_newest_intact_version(over_damaged: Server, name: str) -> None:
    model, (_, version, expected) = name.replace(" ", "_"), DAMAGES[name]
    found = probe_server(over_damaged.http_url, [model], timeout_s=5)
    assert found.ok
    assert {each.version for each in found.versions if each.model == model} == ({"1", "2"} if version else {"2", "3"})
    (line,) = (line for line in over_damaged.log().splitlines() if f"model {model}, version " in line)
    assert f"version {version or 'all'} is bad" in line
    assert expected.replace("'linear'", f"'{model}'") in line
    with urllib.request.urlopen(f"http://{over_damaged.supervisor_url}/metrics", timeout=20) as answer:
        metric = f'vitbn_supervisor_bad_version{{model="{model}",version="{version or "all"}"}} 1.0'
        assert metric in answer.read().decode()


def test_an_intact_version_that_the_server_refuses_is_left_out(tmp_path: Path) -> None:
    refused = published(tmp_path, versions=2) / "2"
    truncate(refused / "model.onnx")
    manifest = json.loads((refused / "manifest.json").read_text())
    manifest["files"]["model.onnx"] = hashlib.sha256((refused / "model.onnx").read_bytes()).hexdigest()
    (refused / "manifest.json").write_text(json.dumps(manifest))
    with running_server(tmp_path, supervised=True) as server:
        wait_until(lambda: right(server), "right")
        assert served(server) == {"1"}
        assert "version 2 is bad" in server.log()


def test_the_server_ends_with_a_killed_supervisor(over_damaged: Server) -> None:
    """The last test of this server."""
    wait_until(lambda: right(over_damaged), "right")
    family = psutil.Process(over_damaged.pid).children(recursive=True)
    os.kill(over_damaged.pid, signal.SIGKILL)
    wait_until(lambda: not [each for each in family if lives(each)], "ended")


def test_a_signal_ends_it_within_6_s_with_exit_code_0_and_no_orphan(tmp_path: Path) -> None:
    """With an idle connection Triton itself waits for 30 s and exits with code 1. test_signal_loop.py has SIGINT."""
    published(tmp_path, versions=1)
    http_port, grpc_port = free_ports(2)
    url, log = f"127.0.0.1:{http_port}", tmp_path.with_suffix(".log")
    command = [sys.executable, "-m", "serving.serve", "--supervised", "--supervisor-port=0", "--allow-metrics=false"]
    command += [f"--model-repository={tmp_path}", f"--http-port={http_port}", f"--grpc-port={grpc_port}"]
    child = Child(command, log)
    child.start()
    try:
        wait_until(lambda: probe_server(url, timeout_s=5).ok, "right")
        assert control_key.find(url)
        supervisor = psutil.Process(child.pid)
        wait_until(lambda: len(supervisor.children(recursive=True)) >= 3, "with a server, a stub and a prober")
        family = supervisor.children(recursive=True)
        with closing(http.client.HTTPConnection(url)) as idle:
            idle.request("GET", "/v2/health/live")
            idle.getresponse().read()
            started = time.monotonic()
            os.kill(child.pid, signal.SIGTERM)
            assert child.wait(HEAL_S) == 0
            assert time.monotonic() - started < STOP_S
        assert not [each for each in family if lives(each)]
        assert "after 3 s 1 HTTP connections were open: they were cut off" in log.read_text()
        assert not control_key.find(url)
    finally:
        child.stop(0)


def test_a_native_server_gets_the_same_care(tmp_path: Path) -> None:
    published(tmp_path / "models", versions=1)
    native = tmp_path / "native" / "tritonserver"
    native.parent.mkdir()
    launcher = str(Path(sys.executable).with_name("tritonserver"))
    programs = shlex.quote(f"{Path(sys.executable).parent}:/usr/bin:/bin")
    native.write_text(f'#!/bin/sh\nPATH={programs} exec {shlex.quote(launcher)} "$@"\n')
    native.chmod(0o755)
    path = os.pathsep.join([str(native.parent), os.environ["PATH"]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", path)
        with running_server(tmp_path / "models", supervised=True) as server:
            wait_until(lambda: right(server), "right")
            before = server.log().count("every served version answers right")
            psutil.Process(server.pid).children()[0].kill()
            wait_until(lambda: server.log().count("every served version answers right") > before, "right")
