"""`vitbn rewrite` where only the extra `rewrite` is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
from foreign_networks import Encoder, export

WITHOUT_OTHERS = """
import sys
from importlib.abc import MetaPathFinder
class Bare(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {"torch", "scipy", "sklearn", "einops", "onnxscript", "safetensors", "tqdm"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Bare())
from vitbn import main
main()
"""


def test_a_bert_is_rewritten_and_proved_without_torch(tmp_path: Path) -> None:
    onnx.save(export(Encoder(), "new", 18), path := tmp_path / "bert.onnx")
    out = tmp_path / "out.onnx"
    command = [sys.executable, "-c", WITHOUT_OTHERS, "rewrite", str(path), "-o", str(out), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    manifest = json.loads(result.stdout)
    assert [proof["precision"] for proof in manifest["proofs"]] == ["float64", "float32"]
    assert out.exists()


def test_the_collector_leaves_imports_out_once_and_works_again() -> None:
    code = """
import gc
from export.rewrite import _garbage_not_collected
for made in range(2):
    with _garbage_not_collected():
        kept = [[]]
    print(gc.isenabled(), any(each is kept for each in gc.get_objects()))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split("\n")[:2] == ["True False", "True True"]
