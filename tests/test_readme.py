import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
USAGE = (ROOT / "docs" / "usage.md").read_text()
READY_S = 60


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """latency.py times only a narrow ViTBN of one block; test_latency.py runs all networks."""
    copy = tmp_path / "a clone"
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    for name, old, new in (
        ("latency.py", "depth or DEFAULT_DEPTH))", "depth or 1), dim=16, heads=2, dim_head=8)"),
        ("measure/engines.py", '("vit", "vitbnffn", "vitbn", "cnn")\n', '("vitbn",)\n'),
        ("measure/roofline.py", '"cpu": 2048', '"cpu": 128'),
        ("measure/roofline.py", "64 << 20  #", "1 << 20  #"),
    ):
        path = copy / "benchmarks" / name
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))
    return copy


def wait_until_ready(server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        assert server.poll() is None, "tritonserver stopped; is port 8000 in use?"
        try:
            urllib.request.urlopen("http://127.0.0.1:8000/v2/health/ready", timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"tritonserver was not ready after {READY_S} s")


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_shell_blocks_run_word_for_word(checkout: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    assert "tritonserver --model-repository triton_repo\n" in "".join(blocks)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    here = {"PATH": path, "PYTHONPATH": str(checkout)}  # not the installed packages
    environment = {**os.environ, **here, "VITBN_BENCHMARK_ROUNDS": "1"}
    servers, printed = [], {}
    try:
        for line in "".join(blocks).splitlines():
            if line.startswith("tritonserver"):
                servers.append(subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=checkout, env=environment))
                wait_until_ready(servers[-1])
                continue
            done = subprocess.run(["bash", "-c", line], cwd=checkout, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            printed[line] = done.stdout
        for program in re.findall(r"```python\n(.*?)```", USAGE, re.DOTALL):
            done = subprocess.run(
                ["python", "-c", program], cwd=checkout, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{program}\n{done.stdout}{done.stderr}"
            printed["python"] = done.stdout
    finally:
        for server in servers:
            server.terminate()
            server.wait(30)
    export, infer = "python export/to_onnx.py --fuse-bn", "python clients/infer.py digit.png"
    assert without_numbers(printed[export]) == without_numbers(shown(export))
    assert printed[infer].strip() == shown(infer).strip()
    assert printed["python"].startswith("3 ")
    latency = "python benchmarks/latency.py --batch 5000"
    assert "norms folded" in printed[latency]
    assert len(re.findall(r"^vitbn .* 1 ", printed[latency], re.MULTILINE)) == 3  # the copy's constants
    assert printed[latency].splitlines()[1].split() == shown(latency).splitlines()[1].split()[:-2]  # no --memory here


def shown(line: str) -> str:
    (block,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    outputs = dict(part.split("\n", 1) for part in f"\n{block}".split("\n$ ")[1:])
    return str(outputs[line])


def without_numbers(output: str) -> str:
    """Numbers vary, and the package's folder."""
    return re.sub(r"\d[\d,.]*(e-\d+)?", "#", re.sub(r"Read .*models/", "Read models/", output)).strip()


def test_the_make_commands_come_first_and_are_those_of_ci() -> None:
    promised = re.findall(r"^    (make \w+)", README, re.MULTILINE)
    ci = re.findall(r"^make \w+", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert promised == ["make demo", "make test"]
    assert set(ci) == set(promised)
