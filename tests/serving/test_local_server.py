import os
import re
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import onnxruntime
import psutil
import pytest
import tritonclient.http as http
from server_state import shared_memory
from tiny_models import check_answers, write_model
from waiting import wait_until

from serving import local_server
from serving.local_server import Server, ServerFailed, running_server
from serving.ports import answers, free_ports
from serving.stub_processes import ServerProcesses, remove_stale_environments

pytestmark = pytest.mark.live
# Both start faster: without a second start of each stub, without models.
COMPLETE = ["--disable-auto-complete-config"]
EMPTY = ["--model-control-mode=explicit"]


def living(session: int) -> list[psutil.Process]:
    """Without zombies, whose exit code nobody may have read yet."""
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_listens_on_loopback_only(server: Server) -> None:
    ports = {int(url.split(":")[1]) for url in (server.http_url, server.grpc_url, server.metrics_url)}
    wait_until(lambda: answers(server.metrics_url, "metrics"), "listening for metrics, last of all")
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, port = local.split(":")
            if state == "0A" and int(port, 16) in ports:
                listening.add((address[-8:], int(port, 16)))  # gRPC's is written as IPv6
    assert listening == {("0100007F", port) for port in ports}  # 127.0.0.1, its bytes reversed


def test_every_path_may_be_relative_and_have_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "my models")
    foreign = tmp_path / "other python" / "python3"
    foreign.parent.mkdir()
    foreign.symlink_to("/bin/false")
    monkeypatch.setenv("PATH", f"{foreign.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    with running_server(Path("my models"), COMPLETE) as server:
        with http.InferenceServerClient(server.http_url) as client:
            check_answers(client)
        regions = shared_memory(server)
        assert regions
        (stub,) = ServerProcesses(server.pid).model_stubs()
        assert str(Path(onnxruntime.__file__).resolve().parent) in Path(f"/proc/{stub.process.pid}/maps").read_text()
    assert [path.name.split("-")[0] for path in (tmp_path / "my cache" / "vitbn").iterdir()] == ["backends"]
    assert not any(region.exists() for region in regions)
    assert not server.log_path.exists()
    assert not living(server.pid)


def test_killed_server_leaves_nothing(tmp_path: Path) -> None:
    write_model(tmp_path)
    with running_server(tmp_path, COMPLETE) as server:
        regions = shared_memory(server)
        assert regions
        os.kill(server.pid, signal.SIGKILL)
    assert not any(region.exists() for region in regions)
    assert not living(server.pid)


def test_only_folders_older_than_every_living_server_are_removed(server: Server) -> None:
    """The name of such a folder does not say whose it is; other servers may live on this machine."""
    old, new, used = folders = [Path(tempfile.mkdtemp(prefix="python_env_", dir="/tmp")) for _ in range(3)]
    (used / "file").touch()
    for folder in (old, used):
        os.utime(folder, (0, 0))
    try:
        remove_stale_environments()
        assert [each.exists() for each in folders] == [False, True, True]
    finally:
        shutil.rmtree(used)
        new.rmdir()


def test_server_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "STOP_GRACE_S", 0.5)
    with running_server(tmp_path, EMPTY) as server:
        os.kill(server.pid, signal.SIGSTOP)  # a stopped process takes no SIGTERM
        started = time.monotonic()
    assert time.monotonic() - started < 5
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_two_launchers_at_once_share_one_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    repository = tmp_path / "repository"
    repository.mkdir()

    def start(_: int) -> str:
        with running_server(repository, EMPTY) as server:
            return server.http_url

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(start, range(2)))) == 2
    assert len(list((tmp_path / "cache" / "vitbn").iterdir())) == 1


def test_taken_port_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port's owner speaks gRPC, as another Triton server may."""
    with ThreadPoolExecutor(1) as pool:
        owner = grpc.server(pool)
        free = free_ports(3)
        choices = [[owner.add_insecure_port("127.0.0.1:0"), *free_ports(2)], free]
        monkeypatch.setattr(local_server, "free_ports", lambda count: choices.pop(0))
        owner.start()
        with running_server(tmp_path, EMPTY) as server:
            assert server.http_url == f"127.0.0.1:{free[0]}"
        owner.stop(None).wait()


@pytest.mark.parametrize("crashes", [1, 2])
def test_a_crash_at_the_start_is_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], crashes: int
) -> None:
    """The native server on PATH crashes so many times, then is the real server."""
    (folder := tmp_path / "bin").mkdir()
    (repository := tmp_path / "models").mkdir()
    (real := tmp_path / "real.py").write_text("from serving.launcher import main\nmain()\n")
    native = folder / "tritonserver"
    native.write_text(
        f'#!/bin/sh\necho x >>{tmp_path}/starts\n[ "$(wc -l <{tmp_path}/starts)" -le {crashes} ] && kill -SEGV $$\n'
        f'PATH="{os.environ["PATH"]}" exec "{sys.executable}" "{real}" "$@"\n'
    )
    native.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    server = running_server(repository, EMPTY)
    if crashes == 1:
        with server as started:
            assert answers(started.http_url, "v2/health/ready")
    else:
        with pytest.raises(ServerFailed, match=r"stopped with signal 11 \(Segmentation fault\)"):
            server.__enter__()
    assert (tmp_path / "starts").read_text() == 2 * "x\n"
    assert "signal 11 (Segmentation fault) at its start: once more" in capsys.readouterr().err


def test_broken_model_is_the_reason(tmp_path: Path) -> None:
    path = write_model(tmp_path, model=b"no model")
    with pytest.raises(ServerFailed, match=re.escape(f"unable to load model 'linear' ({path}): ONNX Runtime cannot")):
        running_server(tmp_path, COMPLETE).__enter__()
