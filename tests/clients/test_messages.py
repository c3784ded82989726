import csv
import io
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from stand_in import StandIn

from clients.infer import infer

LIBRARIES = ("ssl:default", "Connect call", "SETTINGS", "ServerDisconnectedError", "BadStatusLine", "ClientConnector")


def run(*arguments):
    result = CliRunner().invoke(infer, [str(argument) for argument in arguments])
    assert isinstance(result.exception, SystemExit | None)
    return result.exit_code, result.stdout, result.stderr


def idx(path, images):
    path.write_bytes(struct.pack(">IIII", 0x803, len(images), 28, 28) + images.tobytes())
    return path


@pytest.fixture
def server():
    with StandIn().serving("http") as stand_in:
        yield stand_in.urls["http"]


@pytest.mark.parametrize(("served", "asked", "other"), [("http", "grpc", "HTTP"), ("grpc", "http", "gRPC")])
def test_the_port_of_the_other_protocol(served, asked, other, draw):
    with StandIn().serving(served) as stand_in:
        code, _, error = run(draw, "--url", stand_in.urls[served], "--protocol", asked)
    assert code == 3
    assert f"is it the port for {other}" in error
    assert not any(words in error for words in LIBRARIES)


@pytest.fixture
def draw(tmp_path, digit):
    Image.fromarray(255 - digit).resize((90, 90)).save(tmp_path / "digit.png")
    return tmp_path / "digit.png"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("address", "reasons"),
    [
        ("127.0.0.1:1", ["Connection refused"]),
        ("no.such.host.invalid:80", ["Name or service not known", "Temporary failure in name resolution"]),  # offline
    ],
)
def test_nobody_there(draw, protocol, address, reasons):
    code, _, error = run(draw, "--url", address, "--protocol", protocol)
    assert code == 3
    assert any(f"no Triton server answers at {address} over {protocol} ({reason})" in error for reason in reasons)


def test_control_characters_in_a_name_do_not_reach_the_terminal(server, digit, tmp_path):
    name = tmp_path / "a\x1b[31mb\nc.idx"
    idx(name, np.stack([digit]))
    for form in ([], ["--csv"], ["--json"]):
        code, answers, _ = run(name, "--url", server, *form)
        assert code == 0
        assert "\x1b" not in answers
    rows = list(csv.DictReader(io.StringIO(run(name, "--url", server, "--csv")[1])))
    assert [row["file"] for row in rows] == [f"{tmp_path}/a\\x1b[31mb\\nc.idx[0]"]


def test_an_image_without_ink_in_an_idx_file_is_blank(server, digit, tmp_path):
    images = np.stack([np.zeros_like(digit), digit, np.full_like(digit, 20)])
    code, answers, error = run(idx(tmp_path / "images", images), "--url", server)
    assert (code, answers.count("\n")) == (1, 1)
    reason = "no ink found: expected a level above 20 of 255 somewhere, found at most"
    assert error.splitlines() == [
        f"Error: {tmp_path}/images[{number}]: {reason} {most}" for number, most in ((0, 0), (2, 20))
    ]


def test_an_empty_file(server, draw, tmp_path):
    (tmp_path / "empty.png").touch()
    code, _, error = run(tmp_path / "empty.png", draw, "--url", server)
    assert (code, error) == (1, f"Error: {tmp_path}/empty.png: expected an image, found an empty file\n")


def test_noise_is_called_noise(server, tmp_path):
    noise = np.clip(np.random.default_rng(0).normal(128, 40, (300, 300)), 0, 255).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    code, _, error = run(tmp_path / "noise.png", "--url", server)
    assert (code, "contrast" in error) == (1, False)
    assert "no ink found: expected strokes that stand out from the paper, found noise" in error


def test_a_refusal_without_words_shows_its_status(draw):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as guarded:
        threading.Thread(target=guarded.serve_forever, args=(0.01,)).start()
        code, _, error = run(draw, "--url", f"127.0.0.1:{guarded.server_port}")
        guarded.shutdown()
    assert code == 3
    assert error.endswith("answered: HTTP 401\n")
