"""What the benchmarks refuse: command, words, exit code, line. Nothing is written."""

from pathlib import Path

import click
import pytest
from commands import failure

from benchmarks.accuracy import accuracy
from benchmarks.latency import latency
from benchmarks.report import report
from benchmarks.throughput import throughput

FORM = "expected the form of run.schema.json, found at $ "
FILES = {"damaged/a.json": '{"rows": ', "other/a.json": '{"benchmark": "latency", "rows": []}', "list/a.json": "[]"}

Row = tuple[click.Command, str, int, str]
REFUSED: list[Row] = [
    (
        latency,
        "--model vit --model resnet",
        2,
        "Invalid value for '--model': 'resnet' is not one of 'vit', 'vitbnffn',",
    ),
    (latency, "--runtime tensort", 2, "Did you mean 'tensorrt'?"),
    (latency, "--precision fp4", 2, "Invalid value for '--precision': 'fp4' is not one of 'fp32',"),
    (latency, "--batch 0", 2, "Invalid value for '--batch': 0 is not in the range"),
    (latency, "--depth 0", 2, "Invalid value for '--depth': 0 is not in the range"),
    (latency, "--published-configuration --depth 2", 2, "--published-configuration excludes --depth and models other"),
    *((latency, f"--seconds {value}", 2, f"expected a finite number, found {value}") for value in ("nan", "inf")),
    (latency, "--model vit --model vitbn-tiny --depth 2", 2, "vitbn-tiny: a shipped network has its own depth"),
    (latency, "--preset operators --runtime all", 2, "No such option '--runtime'"),
    (latency, "--preset sleep", 2, "Invalid value for '--preset': 'sleep' is not one of 'rewrites',"),
    (latency, "--preset frontier --checkpoints empty --json a.json", 1, "empty: expected checkpoints, found none"),
    (latency, "--preset norms empty --json a.json", 1, "empty/norms.json: expected the result of vitbn study norms"),
    *(
        (throughput, f"--sharing {way}", 2, f"expected INSTANCESxTHREADS, such as 2x1, found {way}")
        for way in ("2", "2x", "x", "axb", "1x2x3", "0x1", "1x-2")
    ),
    (
        throughput,
        "--rate 10 --seconds 2 --batch 1",
        2,
        "--rate 10 with --batch 1: expected 40 requests or more in 2 s, found 20; ask for more --seconds",
    ),
    (
        accuracy,
        "--checkpoint list/a.json",
        1,
        "list/a.json: expected safetensors or a PyTorch state dict, found neither",
    ),
    (report, "build empty", 1, "empty: expected JSON files of the benchmarks, found none"),
    (report, "build damaged", 1, "damaged/a.json: expected a JSON file"),
    (report, "build other", 1, f"other/a.json: {FORM}"),
    (report, "build list", 1, f"list/a.json: {FORM}"),
]


@pytest.mark.parametrize(("command", "words", "code", "said"), REFUSED, ids=lambda value: getattr(value, "name", None))
def test_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: click.Command, words: str, code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    for name, content in FILES.items():
        Path(name).parent.mkdir()
        Path(name).write_text(content)
    before = sorted(tmp_path.rglob("*"))
    line, found = failure(command, *words.split())
    assert found == code
    assert said in line
    assert sorted(tmp_path.rglob("*")) == before
