import gzip
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tarfile
import time
import urllib.request
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import ok

from benchmarks.latency import latency
from export.to_onnx import export as export_command
from models.networks.config import ModelConfig
from vitbn import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
USAGE = (ROOT / "docs" / "usage.md").read_text()
READY_S, READY = 60, "/v2/health/ready"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    copy = tmp_path / "a clone"
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


class Terminal:
    """Runs lines as a user in the folder of a clone; servers keep running until the next of their port, or the end."""

    ANSWERS = (("vitbn web", 8080, "/"), ("vitbn serve", 8000, READY), ("tritonserver", 8000, READY))
    SERVERS = tuple(program for program, _, _ in ANSWERS)

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ours = f"{folder}{os.pathsep}{folder / 'tests'}"  # not the installed
        self._environment = {**os.environ, "PATH": path, "PYTHONPATH": ours, **environment}
        self._servers: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *error: object) -> None:
        for port in list(self._servers):
            self._stop(port)

    def run(self, line: str) -> str:
        """What the line prints on standard output; a server's line returns when it answers."""
        for program, port, path in self.ANSWERS:
            if line.startswith(program):
                self._stop(port)
                self._servers[port] = subprocess.Popen(
                    ["bash", "-c", f"exec {line}"], cwd=self.folder, env=self._environment
                )
                self._wait(line, port, path)
                return ""
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env=self._environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _wait(self, line: str, port: int, path: str) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            assert self._servers[port].poll() is None, f"{line} stopped; is port {port} in use?"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)
        pytest.fail(f"{line} was not ready after {READY_S} s")

    def _stop(self, port: int) -> None:
        if server := self._servers.pop(port, None):
            server.terminate()
            server.wait(30)


# Run in this process, for each new process imports torch; test_end_to_end.py starts every script.
WITH_TORCH = {
    "python export/to_onnx.py --fuse-bn": export_command,
    "python benchmarks/latency.py --batch 5000": latency,
}


def here(line: str) -> str:
    return str(ok(WITH_TORCH[line], *shlex.split(line)[2:]).stdout)


def test_a_terminal_refuses_what_fails(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        assert terminal.run("echo one  # two") == "one\n"
        with pytest.raises(AssertionError, match="no-such"):
            terminal.run("vitbn no-such")
        with pytest.raises(AssertionError, match="vitbn web --port no stopped"):
            terminal.run("vitbn web --port no")


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_four_commands_run_word_for_word(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures fewer networks and runtimes; test_latency.py measures all."""
    monkeypatch.chdir(checkout)
    monkeypatch.setattr("benchmarks.measure.interleaved_timing.MOST_ROUNDS", 1)
    monkeypatch.setattr("benchmarks.latency.DEFAULT_DEPTH", 1)
    monkeypatch.setattr(
        "benchmarks.latency.ModelConfig", partial(ModelConfig, dim=16, heads=4, dim_head=16, mlp_dim=24)
    )
    monkeypatch.setattr("benchmarks.measure.peak_flops_and_bandwidth.SIDE", {"cpu": 128})
    monkeypatch.setattr("benchmarks.measure.peak_flops_and_bandwidth.STREAM_FLOATS", 1 << 16)
    monkeypatch.setattr(next(each for each in latency.params if each.name == "models"), "default", ("vitbn",))
    lines = re.findall(r"^\$ (.*)$", README, re.MULTILINE)
    assert "tritonserver --model-repository triton_repo" in lines
    with Terminal(checkout) as terminal:
        printed = {line: terminal.run(line) if line not in WITH_TORCH else here(line) for line in lines}
    (export, latency_line), infer = WITH_TORCH, "python clients/infer.py digit.png"
    assert without_numbers(printed[export]) == without_numbers(shown(export))
    assert printed[infer].strip() == shown(infer).strip()
    assert "norms folded" in printed[latency_line]
    assert len(re.findall(r"^vitbn .* 1 ", printed[latency_line], re.MULTILINE)) == 3  # of depth 1
    assert printed[latency_line].splitlines()[1].split() == shown(latency_line).splitlines()[1].split()


# Lines that take long, a GPU, Envoy or a package registry, and lines whose options another test runs: that test.
ELSEWHERE = {
    "make demo": ".ci/run::make demo",
    "make test": ".ci/run::make test",
    "pip install -c constraints.txt -e '.[rewrite]'": "tests/export/compiler/test_without_torch.py::"
    "test_a_bert_is_rewritten_and_proved_without_torch",
    "pip install -c constraints.txt -e '.[rewrite,serve,client]'": "tests/test_pages.py::"
    "test_every_command_line_parses",
    "pip install -c constraints.txt -e '.[bulk]'": "tests/test_pages.py::test_every_command_line_parses",
    "vitbn rewrite IN.onnx -o OUT.onnx --time": "tests/export/compiler/test_rewrite.py::"
    "test_a_file_is_written_with_its_manifest_and_a_sample",
    "vitbn repository publish vit.onnx --pictures --processor preprocessor_config.json --labels labels.txt": "tests/"
    "export/pictures/test_published.py::test_infer_answers_as_the_original_with_its_processor",
    "vitbn infer photo.jpg --model vit": "tests/export/pictures/test_published.py::"
    "test_infer_answers_as_the_original_with_its_processor",
    "vitbn bench accuracy --published triton_repo/vit --dataset photos/": "tests/export/pictures/test_published.py::"
    "test_accuracy_and_temperature_of_a_folder",
    "vitbn export --model vitbn-tiny --rewrites all": "tests/export/test_to_onnx.py::test_a_shipped_checkpoint_by_name",
    "vitbn export --checkpoint FILE --rewrites all": "tests/test_photos.py::test_it_is_proved_on_its_own_pictures",
    "vitbn export --rewrites all --backend openvino": "tests/export/test_to_onnx.py::"
    "test_openvino_passes_the_gate_and_is_served_as_a_model_of_its_own",
    "vitbn tensorrt --model vitbn --precision fp16": "tests/export/test_tensorrt.py::"
    "test_the_command_builds_and_publishes_an_engine",
    "vitbn export --rewrites all --precision int8": "tests/export/test_precision.py::"
    "test_the_command_stores_both_accuracies",
    "vitbn export --backend auto --for latency --max-accuracy-drop 0.1": "tests/export/test_choose_engine.py::"
    "test_the_best_is_published_with_its_figures",
    "vitbn serve --supervised --model-repository triton_repo": "tests/serving/test_supervisor.py::"
    "test_a_signal_ends_it_within_6_s_with_exit_code_0_and_no_orphan",
    "vitbn serve --servers 2 --model-repository triton_repo": "tests/serving/test_fleet.py::"
    "test_no_client_sees_a_fault",
    "vitbn train": "tests/models/test_train_command.py::test_command_writes_prints_and_resumes",
    "vitbn adapt models/pretrained/vitbn.safetensors scans/": "tests/models/"
    "test_batch_norm_adaptation.py::test_pictures_of_the_new_source_give_the_accuracy_back",
    "vitbn calibrate checkpoints/vitbn-mnist.safetensors": "tests/models/test_calibration.py::"
    "test_command_adds_them_and_keeps_the_rest",
    "vitbn train --model vitbnffn --dataset mnist --depth 4 --epochs 20": "tests/models/test_train_command.py::"
    "test_command_writes_prints_and_resumes",
    "vitbn study --list": "tests/benchmarks/studies/test_study.py::test_list_says_how_long_each_takes",
    "vitbn study learning-rates --quick --output DIR": "tests/benchmarks/studies/test_study.py::"
    "test_a_study_records_its_command_scope_and_runs",
    "vitbn tune --model vitbn --dataset mnist": "tests/benchmarks/studies/test_tune.py::"
    "test_train_takes_the_best_parameters",
    "vitbn train --model vitbn --dataset mnist --params searches/vitbn.best.json": "tests/benchmarks/studies/"
    "test_tune.py::test_train_takes_the_best_parameters",
    "vitbn tune --objective frontier --dataset mnist --trials 30 --epochs 5": "tests/benchmarks/studies/test_tune.py::"
    "test_the_frontier_is_trained_measured_and_kept",
    "vitbn bench latency --preset frontier --checkpoints searches/trials --json FILE": "tests/benchmarks/"
    "test_frontier.py::test_a_short_run",
    "vitbn bench accuracy --checkpoint mine.safetensors": "tests/benchmarks/test_own_checkpoints.py::"
    "test_accuracy_on_the_dataset_of_its_training",
    "vitbn bench latency --batch 5000": "tests/test_readme.py::test_the_four_commands_run_word_for_word",
    "vitbn bench latency --model vitbn-tiny": "tests/benchmarks/test_latency.py::"
    "test_a_shipped_network_has_its_own_depth_also_in_a_lower_precision",
    "vitbn bench latency --published-configuration": "tests/benchmarks/test_latency.py::"
    "test_the_published_configuration_comes_with_its_caveat",
    "vitbn bench latency --preset rewrites": "tests/benchmarks/test_rewrites_benchmark.py::test_a_short_run",
    "vitbn bench throughput --batch 1 --rate 1000": "tests/benchmarks/test_throughput.py::test_a_short_run",
    "vitbn bench throughput --engine openvino --batch 300 --shared-memory system": "tests/benchmarks/"
    "test_throughput.py::test_several_engines_with_large_requests",
    "vitbn bench throughput --preset added --batch 300": "tests/benchmarks/test_added.py::test_a_short_run",
    "make report": "tests/benchmarks/test_report.py::test_the_committed_pages_are_those_of_the_results",
    "make benchmarks": "tests/benchmarks/test_report.py::test_a_rerun_measures_every_result_and_no_other",
    "make benchmarks-gpu DRY_RUN=1": "tests/benchmarks/test_gpu.py::test_a_dry_run_prints_and_checks_every_command",
    "make benchmarks-gpu": "tests/benchmarks/test_gpu.py::test_without_a_gpu_nothing_runs",
}
# Fewer epochs and blocks, and a folder in place of S3; MNIST has 5,300 training images here.
SHORTER = {
    "vitbn train --dataset pictures/ --output mine.safetensors": ("", " --epochs 25"),
    "vitbn train --params models/pretrained/recipe.json --last-block all --model vitbn --depth 6 --epochs 36": (
        "--depth 6 --epochs 36",
        "--depth 1 --epochs 1",
    ),
    "vitbn export --rewrites all": ("", " --model vitbn-tiny --name vitbn"),
    "vitbn export --rewrites all --instances 2 --threads 1": ("", " --depth 1"),
    "vitbn bulk pictures/ 's3://bucket/shards/*.tar' --output answers --model triton_repo/vitbn": ("s3://bucket/", ""),
}


def lines_of_the_pages() -> list[str]:
    """README's indented commands, then the blocks of usage.md; a Python block is a line.

    Each once, but for servers: a server that starts again serves what was published since.
    """
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", USAGE, re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^    ((?:make|pip|vitbn) .*)", README, re.MULTILINE)
    for language, block in blocks:
        lines += [block] if language == "python" else block.splitlines()
    bare = [re.sub(r" +# .*", "", line).strip() if "\n" not in line else line for line in lines]
    return [line for place, line in enumerate(bare) if line.startswith(Terminal.SERVERS) or line not in bare[:place]]


def test_the_tables_of_lines_name_lines_and_tests() -> None:
    assert set(ELSEWHERE) | set(SHORTER) <= set(lines_of_the_pages())
    for place in ELSEWHERE.values():
        path, _, name = place.partition("::")
        assert re.search(rf"^(def )?{re.escape(name)}\b", (ROOT / path).read_text(), re.MULTILINE), place


def write_the_users_files(folder: Path, mnist_dir: Path) -> None:
    """Two shapes in pictures/, digits in scans/, photos/ and shards/, MNIST's first images."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng(0)
    for shape in ("circle", "square"):
        (folder / "pictures" / shape).mkdir(parents=True)
        for number in range(60):
            picture = Image.new("L", (28, 28))
            (x, y), side = rng.integers(3, 8, 2).tolist(), int(rng.integers(12, 18))
            draw = ImageDraw.Draw(picture)
            (draw.ellipse if shape == "circle" else draw.rectangle)((x, y, x + side, y + side), outline=255, width=2)
            picture.save(folder / "pictures" / shape / f"{number}.png")
    Image.open(folder / "pictures/circle/0.png").save(folder / "picture.jpg")
    for name, count, head in (("train-images", 5300, 16), ("train-labels", 5300, 8), ("t10k-images", 200, 16)):
        write_first(mnist_dir, f"{name}-idx{head // 4 - 1}-ubyte", count, head, folder / "mnist")
    write_first(mnist_dir, "t10k-labels-idx1-ubyte", 200, 8, folder / "mnist")
    for name in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        shutil.copy(folder / "mnist" / name, folder)
    digits = np.frombuffer((folder / "t10k-images-idx3-ubyte").read_bytes()[16:], np.uint8).reshape(-1, 28, 28)
    for name in ("scans", "photos", "shards"):
        (folder / name).mkdir()
    for number, digit in enumerate(digits[:60]):
        Image.fromarray(digit).save(folder / "scans" / f"{number:02}.png")
    digit = Image.open(folder / "digit.png").convert("L")
    digit.save(folder / "photos/one.jpg")
    cheque = Image.new("L", (2 * digit.width, digit.height))
    for number in range(2):
        cheque.paste(digit, (number * digit.width, 0))
    cheque.save(folder / "cheque.png")
    with tarfile.open(folder / "shards/0.tar", "w") as shard:
        shard.add(folder / "scans/00.png", "00.png")


def write_first(mnist_dir: Path, name: str, count: int, head: int, folder: Path) -> None:
    """The first `count` images or labels of an idx file, which may be gzipped."""
    plain = mnist_dir / name
    content = plain.read_bytes() if plain.exists() else gzip.decompress(Path(f"{plain}.gz").read_bytes())
    folder.mkdir(exist_ok=True)
    size = 784 if head == 16 else 1
    (folder / name).write_bytes(content[:4] + struct.pack(">I", count) + content[8 : head + count * size])


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_of_the_pages_runs(checkout: Path, mnist_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, for each new process imports torch; servers and the program have their own."""
    write_the_users_files(checkout, mnist_dir)
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("MNIST_DIR", str(checkout / "mnist"))
    printed = {}
    with Terminal(checkout, OMP_NUM_THREADS="1") as terminal:
        for line in lines_of_the_pages():
            if line not in ELSEWHERE:
                old, new = SHORTER.get(line, ("", ""))
                shorter = line.replace(old, new) if old else line + new
                if "\n" in line:
                    printed[line] = terminal.run(shlex.join(["python", "-c", line]))
                elif shorter.startswith(Terminal.SERVERS):
                    terminal.run(shorter)
                else:
                    printed[line] = ok(main, *shlex.split(shorter)[1:]).stdout
    (program,) = (line for line in printed if "\n" in line)
    assert printed[program].startswith("3 ")
    assert printed["vitbn infer picture.jpg --model mine"].startswith("picture.jpg: circle")
    assert printed["vitbn infer digit.png --model vitbn"].startswith("digit.png: 3 ")
    assert printed["vitbn infer scans/ 'photos/*.jpg' --model vitbn --top 3 --json"].count("\n") == 61
    assert len(re.findall(r": 3 \(", printed["vitbn infer cheque.png --model vitbn --split --reject-below 0.9"])) == 2
    accuracy = "vitbn infer t10k-images-idx3-ubyte --model vitbn --labels t10k-labels-idx1-ubyte"
    assert re.search(r"^accuracy: (9\d|100)", printed[accuracy], re.MULTILINE)


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
