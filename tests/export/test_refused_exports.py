"""What `export`, `tensorrt` and `repository` refuse: an exit code, one line, and no file written or changed."""

import re
from pathlib import Path

import click
import pytest
import random_networks
from artifacts import ARTIFACT
from refusals import Row, check_refused

from export.publishing.publish import publish
from export.repository import repository
from export.to_onnx import export
from export.to_tensorrt import tensorrt
from models.networks.config import ModelConfig

TINY = ModelConfig(depth=2, dim=16, heads=2, dim_head=8, mlp_dim=16)
NOBODY = "--server 127.0.0.1:1"
AUTO = "expected --backend auto alone, found --precision"
MODELS = "expected one of its models (vitbn), found"
EXPORT = [
    ("--checkpoint none.safetensors", 1, "none.safetensors: expected a checkpoint"),
    ("--checkpoint text", 1, "text: expected safetensors or a PyTorch state dict"),
    ("--checkpoint tiny --depth 9", 1, "expected at least 9 blocks (--depth 9), found 2 blocks"),
    ("--checkpoint tiny --name a/b", 1, "model name: expected"),
    ("--name ../../evil", 1, "Error: model name: expected letters, digits, _ and -, found '../../evil'"),
    ("--checkpoint none.safetensors --repository text", 1, "Error: text: expected a model repository, found a file"),
    ("--checkpoint none.safetensors --output text/x.onnx", 1, "Error: text/x.onnx: Not a directory"),
    ("--checkpoint tiny --output m.json", 1, "expected a file as OUT.onnx, found the ending of a manifest"),
    ("--checkpoint tiny --output m.safetensors", 1, "expected a file as OUT.onnx, found the ending of a man"),
    ("--checkpoint tiny --output run.onnx", 1, "run.json: expected nothing or the manifest of an export"),
    ("--checkpoint tiny --output .", 1, "expected a file as OUT.onnx, found a folder"),
    ("--checkpoint tiny --output tiny", 1, "expected another file than the checkpoint"),
    *(
        (f"--output x.onnx {more}", 2, "expected --output alone")
        for more in ("--threads 0", "--threads 1", "--name mine", "--repository models", "--backend auto")
    ),
    ("--model vitbn --checkpoint x.pth", 2, "expected --model or --checkpoint, found both"),
    ("--max-accuracy-drop 1", 2, "expected no --max-accuracy-drop: fp32 drops nothing"),
    ("--max-accuracy-drop nan --precision int8", 2, "'--max-accuracy-drop': expected a finite number, found nan"),
    ("--data-dir nowhere", 2, "Directory 'nowhere' does not exist"),
    ("--backend openvino --for latency", 2, "expected --backend onnxruntime or auto with --for, found openvino"),
    ("--backend auto --precision int8", 2, AUTO),
    ("--backend auto --threads 0", 2, AUTO),
    ("--fuse-bn --rewrites none", 2, "expected --fuse-bn or --rewrites none, found both"),
    ("--fuse-bn --rewrites all", 2, "expected --fuse-bn or --rewrites all, found both"),
]
TENSORRT = [
    ("--onnx a.onnx --model vit", 2, "expected --onnx or --model, found both"),
    ("--min-batch 65", 2, "expected --min-batch <= --opt-batch <= --max-batch, found 65, 64, 5000"),
    ("--max-batch 8", 2, "found 1, 64, 8"),
    ("--precision int8", 2, "int8"),
    ("--server-tensorrt 24.10-py3", 2, "expected a version such as 10.4.0, found '24.10-py3'"),
    ("--onnx a.onnx --output link", 2, "--output: expected another file than --onnx, found "),
]
REPOSITORY = [
    (f"promote vitbn 4 {NOBODY}", 1, "expected one of the versions 1, 2, 3, found 4"),
    (f"promote vit 1 {NOBODY}", 1, f"{MODELS} 'vit'"),
    (f"rollback ../vitbn {NOBODY}", 1, f"{MODELS} '../vitbn'"),
    ("prune ''", 1, f"{MODELS} ''"),
    *(
        (f"list --server '{server}'", 2, f"expected HOST:PORT, found '{server}'")
        for server in ("", "[", "[a]:80", "localhost:http")
    ),
    (f"promote vitbn 2 {NOBODY} --grpc 8001", 2, "expected HOST:PORT, found '8001'"),
    ("verify vit", 1, f"{MODELS} 'vit'"),
    ("show vitbn 9", 1, "9/manifest.json: expected the manifest of an export, found No such file or directory"),
    (f"publish a.onnx --name 'a b' {NOBODY}", 1, "model name: expected letters, digits, _ and -, found 'a b'"),
    (f"publish text {NOBODY}", 1, "Error: text: expected an ONNX file, or an engine with text.json beside it"),
    *(
        (f"{name} --repository none", 1, "Error: none: expected a model repository, found no such folder")
        for name in (f"list {NOBODY}", "verify", f"prune {NOBODY}")
    ),
]
ROWS: list[Row] = [
    *((export, *row) for row in EXPORT),
    *((tensorrt, *row) for row in TENSORRT),
    *((repository, *row) for row in REPOSITORY),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusals")
    (folder / "text").write_text("not a checkpoint")
    (folder / "run.json").write_text('{"epochs": 1}')
    (folder / "a.onnx").write_bytes(b"graph")
    (folder / "link").symlink_to("a.onnx")
    random_networks.saved(folder / "tiny", TINY)
    for _ in range(3):
        publish(folder / "triton_repo", "vitbn", ARTIFACT)
    return folder


@pytest.mark.parametrize(("command", "words", "code", "said"), ROWS)
def test_one_line_and_nothing_written(place: Path, command: click.Command, words: str, code: int, said: str) -> None:
    printed = check_refused(place, command, words, code, said)
    assert not re.search(r"max \|error\||Not served yet", printed), "refused before anything is proved"
