import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image
from stand_in import StandIn

from clients.infer import infer

ROOT = Path(__file__).resolve().parents[2]
DIGIT = str(ROOT / "digit.png")
NOBODY = "127.0.0.1:1"


def failure(*arguments):
    result = CliRunner().invoke(infer, [str(argument) for argument in arguments])
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr, result.exit_code


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_server_down(protocol):
    message, exit_code = failure(DIGIT, "--url", NOBODY, "--protocol", protocol)
    assert exit_code == 3
    assert f"no Triton server answers at {NOBODY} over {protocol}" in message
    assert "tritonserver --model-repository triton_repo" in message


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "127.0.0.1", "", "host:port", "127.0.0.1:99999"])
def test_address_that_is_none(url):
    message, exit_code = failure(DIGIT, "--url", url)
    assert exit_code == 3
    assert "HOST:PORT" in message
    assert repr(url) in message


@pytest.mark.parametrize(("path", "found"), [("seven.png", "no such file"), (__file__, "no format")])
def test_what_is_no_image(path, found):
    message, exit_code = failure(path)
    assert (exit_code, f"{path}: expected an image, found {found}" in message) == (1, True)


@pytest.mark.slow
def test_a_picture_with_too_many_pixels(tmp_path):
    """In its own process: Pillow warns too."""
    Image.new("1", (10_000, 10_000)).save(tmp_path / "bomb.png")
    command = [sys.executable, str(ROOT / "clients/infer.py"), str(tmp_path / "bomb.png")]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout, child.stderr.count("\n")) == (1, "", 1), child.stderr
    assert child.stderr.startswith(
        f"Error: {tmp_path / 'bomb.png'}: expected at most 89478485 pixels, found 10000x10000"
    )


def test_blank_image(tmp_path):
    Image.new("RGB", (300, 200), "white").save(tmp_path / "sheet.png")
    with StandIn().serving("http") as server:
        message, exit_code = failure(tmp_path / "sheet.png", "--url", server.urls["http"])
    assert (exit_code, "sheet.png: no ink found" in message) == (1, True)


USAGE = [
    ["--top", "0"],
    ["--protocol", "smtp"],
    ["--colour"],
    ["--json", "--csv"],
    ["--csv", "--show"],
    ["--batch-size", "0"],
    ["--concurrency", "0"],
    ["--timeout", "0"],
    ["--timeout", "nan"],
    ["--header", "Key"],
    ["--header", ": value"],
    ["--header", "Key: a\nb"],
    ["--ssl-ca", "missing.pem"],
    ["--ssl-cert", DIGIT],
    ["--labels", DIGIT],
    ["--split", "--labels", DIGIT],
    *(["--reject-below", share] for share in ("0", "1.1", "nan")),
]


@pytest.mark.parametrize("arguments", [[], *([DIGIT, *options] for options in USAGE)])
def test_usage(arguments):
    result = CliRunner().invoke(infer, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr


def test_a_usage_error_comes_at_once(processor_time_s):
    command = [sys.executable, ROOT / "clients/infer.py", DIGIT, "--header", "Key"]
    assert any(processor_time_s(command, code=2) < 0.5 for _ in range(3))


def test_several_failures_are_named_before_a_server_is_needed(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"seven")
    result = CliRunner().invoke(infer, ["missing.png", str(tmp_path / "bad.png"), "--url", NOBODY])
    assert (result.exit_code, result.stdout) == (1, "")
    assert [line.split(": ")[1] for line in result.stderr.splitlines()] == ["missing.png", str(tmp_path / "bad.png")]


@pytest.mark.slow
def test_script_fails_without_a_traceback():
    command = [sys.executable, ROOT / "clients/infer.py", DIGIT, "--url", NOBODY]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 3
    assert child.stderr.startswith("Error: ")
    assert child.stderr.count("\n") == 1


BLOCKED = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
{program}
"""
SERVER_SIDE = {"torch", "onnx", "onnxruntime", "sklearn", "scipy", "models", "export", "serving", "benchmarks"}
PREPROCESS = f"""
from clients.preprocess import read_image, to_model_input
assert to_model_input(read_image({DIGIT!r})).shape == (1, 28, 28)
"""
ASK = f"""
from clients.classifier import Classifier, Options, ServerUnavailable
for protocol in ("http", "grpc"):
    try:
        Classifier(Options({NOBODY!r}, protocol, retry_s=0))
    except ServerUnavailable:
        continue
    raise SystemExit("expected ServerUnavailable")
"""
HELP = "from clients.infer import infer; infer(['--help'])"
USAGE_ERROR = """
from clients.infer import infer
try:
    infer(["x", "--header", "Key"])
except SystemExit as end:
    raise SystemExit(end.code - 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("absent", "program"),
    [
        (SERVER_SIDE, PREPROCESS),
        (SERVER_SIDE, ASK),
        (SERVER_SIDE | {"numpy", "PIL", "tritonclient"}, HELP),
        (SERVER_SIDE | {"numpy", "PIL", "tritonclient"}, USAGE_ERROR),
    ],
    ids=["preprocess", "ask", "help", "usage"],
)
def test_a_client_machine_needs_no_more(absent, program):
    child = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(absent=absent, program=program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr


def test_the_block_blocks():
    child = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(absent=SERVER_SIDE, program="import onnx")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'onnx'" in child.stderr
