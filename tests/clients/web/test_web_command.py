import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import told_lines

from clients.web.app import web

ROOT = Path(__file__).resolve().parents[3]
APP = [sys.executable, str(ROOT / "clients/web/app.py")]


PROGRAM = """
import sys
from clients.web.app import web
web(["--help"], standalone_mode=False)
print(sorted({"flask", "waitress", "numpy", "PIL", "tritonclient", "torch"} & set(sys.modules)))
import clients.web.routes
print(sorted({"torch", "onnx", "onnxruntime", "sklearn", "models", "export", "serving"} & set(sys.modules)))
"""


def test_help_imports_neither_flask_nor_numpy_and_the_page_nothing_of_the_server_side() -> None:
    child = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert "--protocol" in child.stdout
    assert child.stdout.endswith("\n[]\n[]\n")


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.1", "no.such.host.invalid", "192.0.2.1", "", "x" * 300])
def test_an_address_to_listen_on_that_cannot_be_had(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, printed, (error,) = told_lines(web, "--host", host, "--port", port)
    assert (code, printed) == (1, [])
    assert error.startswith(f"Error: cannot listen on {host!r}, port {port}: ")


@contextmanager
def started(*options: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    command = [*APP, "--port", "0", "--url", "127.0.0.1:1", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:  # a preexec_fn would fork beside the threads of gRPC
        try:
            yield process, process.stdout.readline().split()[2]
        finally:
            process.kill()


def listening(port: int) -> list[str]:
    """The addresses that listen on a port, in hexadecimal."""
    tables = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()]
    return [fields[1] for fields in tables if fields[3] == "0A" and fields[1].endswith(f":{port:04X}")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "shown", "end"),
    [("", "127.0.0.1", signal.SIGINT), ("localhost", "", signal.SIGTERM), ("0.0.0.0", "127.0.0.1", signal.SIGTERM)],
)
def test_it_listens_until_it_is_ended_on_loopback_alone_by_default(host: str, shown: str, end: signal.Signals) -> None:
    with started(*(("--host", host) if host else ())) as (process, url):
        if not host:
            port = int(url.rpartition(":")[2])
            assert listening(port) == [f"0100007F:{port:04X}"]
        assert url.startswith(f"http://{shown}")
        with urllib.request.urlopen(url, timeout=60) as page:
            assert b"<title>Draw a digit</title>" in page.read()
        process.send_signal(end)
        assert process.wait(60) == 0
        *warned, unanswered = process.stderr.read().splitlines()
    assert unanswered.startswith("The page has no answers yet: no Triton server answers at 127.0.0.1:1 over http")
    assert [line.startswith("Others reach this page") for line in warned] == [True] * (host == "0.0.0.0")
