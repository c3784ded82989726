"""What the README says is what happens: its shell blocks are run word for word, its make commands are those of CI."""

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
READY_S = 60


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the tree, as `git clone` would make it."""
    copy = tmp_path / "a clone"
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
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
@pytest.mark.timeout(1200)
def test_the_shell_blocks_run_word_for_word(checkout: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    assert "tritonserver --model-repository triton_repo\n" in "".join(blocks)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
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
        for program in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
            done = subprocess.run(
                ["python", "-c", program], cwd=checkout, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{program}\n{done.stdout}{done.stderr}"
            printed["python"] = done.stdout
    finally:
        for server in servers:
            server.terminate()
            server.wait(30)
    assert printed["python clients/infer.py digit.png"].startswith("digit.png: 3 (")
    assert printed["python"].startswith("3 ")
    assert "norms folded" in printed["python benchmarks/latency.py --batch 5000"]


def test_the_make_commands_come_first_and_are_those_of_ci() -> None:
    promised = re.findall(r"^    (make \w+)", README, re.MULTILINE)
    ci = re.findall(r"^make \w+", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert promised == ["make demo", "make test"]
    assert set(ci) == set(promised)


def test_every_file_that_the_documents_link_to_is_there() -> None:
    for document in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "triton_repo/README.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / document).read_text()):
            assert (ROOT / document).parent.joinpath(target).exists(), f"{document}: {target}"
