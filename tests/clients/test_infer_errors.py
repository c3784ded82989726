import subprocess
import sys
from pathlib import Path

import pytest
from infer_command import run
from PIL import Image
from stand_in import StandIn

ROOT = Path(__file__).resolve().parents[2]
DIGIT = str(ROOT / "digit.png")
NOBODY = "127.0.0.1:1"
LIBRARIES = ("ssl:default", "Connect call", "SETTINGS", "ServerDisconnectedError", "BadStatusLine", "ClientConnector")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("address", "reasons"),
    [
        (NOBODY, ["Connection refused"]),
        ("no.such.host.invalid:80", ["Name or service not known", "Temporary failure in name resolution"]),  # offline
    ],
)
def test_an_absent_server_is_named_with_the_reason(protocol, address, reasons):
    code, lines, (error,) = run(DIGIT, "--url", address, "--protocol", protocol)
    assert (code, lines) == (3, [])
    starts = [f"Error: no Triton server answers at {address} over {protocol} ({reason})" for reason in reasons]
    assert error.startswith(tuple(starts))
    assert error.endswith("start one with: tritonserver --model-repository triton_repo")


@pytest.mark.parametrize(("served", "asked", "other"), [("http", "grpc", "HTTP"), ("grpc", "http", "gRPC")])
def test_the_port_of_the_other_protocol(served, asked, other):
    with StandIn().serving(served) as stand_in:
        code, lines, (error,) = run(DIGIT, "--url", stand_in.url, "--protocol", asked)
    assert (code, lines) == (3, [])
    assert f"is it the port for {other}" in error
    assert not any(words in error for words in LIBRARIES)


def test_refused_encryption_is_one_line_though_grpc_logs():
    """In its own process: gRPC's library writes to the descriptor."""
    with StandIn().serving("grpc") as stand_in:
        command = [sys.executable, ROOT / "clients/infer.py", DIGIT, "--url", stand_in.url, "--protocol", "grpc"]
        child = subprocess.run([*command, "--ssl"], capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout, child.stderr.count("\n")) == (3, "", 1), child.stderr


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


def test_several_failures_are_named_before_a_server_is_needed(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"seven")
    code, lines, errors = run("missing.png", tmp_path / "bad.png", "--url", NOBODY)
    assert (code, lines) == (1, [])
    assert [line.split(": ")[1] for line in errors] == ["missing.png", str(tmp_path / "bad.png")]


def test_a_usage_error_comes_at_once(processor_time_s):
    command = [sys.executable, ROOT / "clients/infer.py", DIGIT, "--header", "Key"]
    assert any(processor_time_s(command, code=2) < 0.5 for _ in range(3))


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
ASK = f"""
from clients.preprocess import read_image, to_model_input
assert to_model_input(read_image({DIGIT!r})).shape == (1, 28, 28)
from clients.classifier import Classifier, Options, ServerUnavailable
for protocol in ("http", "grpc"):
    try:
        Classifier(Options({NOBODY!r}, protocol, retry_s=0))
    except ServerUnavailable:
        continue
    raise SystemExit("expected ServerUnavailable")
"""
HELP = """
from clients.infer import infer
for arguments, code in ((["--help"], 0), (["x", "--header", "Key"], 2)):
    try:
        infer(arguments)
    except SystemExit as end:
        assert end.code == code
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("absent", "program", "error"),
    [
        (SERVER_SIDE, ASK, ""),
        (SERVER_SIDE | {"numpy", "PIL", "tritonclient"}, HELP, "Error: "),
        (SERVER_SIDE, "import onnx", "No module named 'onnx'"),  # what is absent cannot be imported
    ],
    ids=["ask", "help", "absent"],
)
def test_a_client_machine_needs_no_more(absent, program, error):
    script = BLOCKED.format(absent=absent, program=program)
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (child.returncode != 0) == (program == "import onnx"), child.stderr
    assert error in child.stderr
