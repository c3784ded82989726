"""What the benchmarks and studies refuse."""

import json
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from idx_files import write_idx
from random_networks import saved
from refusals import Row, check_refused

from benchmarks.accuracy import accuracy
from benchmarks.latency import latency
from benchmarks.presets.added import added
from benchmarks.presets.frontier import frontier
from benchmarks.report import report
from benchmarks.studies.study import study
from benchmarks.studies.tune import tune
from benchmarks.throughput import throughput
from models.data.mnist import MNIST_PARTS
from models.networks.config import ModelConfig

FORM = "expected the form of run.schema.json, found at $ "
FOUND = {"model": "vitbn", "dataset": "mnist", "lr": 0.01, "batch_size": 30, "depth": 1, "schedule": "constant"}
NO_LR = {name: value for name, value in FOUND.items() if name != "lr"}
FILES = {
    **{"damaged/a.json": '{"rows": ', "other/a.json": '{"benchmark": "latency", "rows": []}', "list/a.json": "[]"},
    **{"damaged/a.safetensors": "nothing", "file": ""},
    **{
        f"{name}.best.json": json.dumps(found)
        for name, found in {
            "right": FOUND,
            "digits": FOUND | {"dataset": "digits"},
            "resnet": FOUND | {"model": "resnet"},
            "colour": FOUND | {"colour": "red"},
            "rateless": NO_LR,
            "flat": FOUND | {"depth": 0},
        }.items()
    },
}
TINY = ModelConfig(dim=16, depth=1, heads=2, dim_head=8, mlp_dim=24)
METRICS = {"dataset": "mnist", "test_images": 10_000, "test_accuracy": 0.99}
CHECKPOINTS = {  # depth and metrics
    "half/half": (1, {"dataset": "mnist"}),
    "mixed/a": (1, METRICS),
    "mixed/b": (2, METRICS | {"dataset": "digits", "test_images": 359}),
    "a/runs/vit": (1, METRICS),
    "b/runs/vit": (2, METRICS),
    "vitbn": (1, METRICS),
}
OPTIONS = "expected options of models/train.py, found"
OTHER_NAME = "expected a name that no other network has; rename the file"
NO_CHECKPOINT = "list/a.json: expected safetensors or a PyTorch state dict, found neither"
SIZES = "expected --objective frontier with only --model vitbn"

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
    *(
        (added, f"--model vitbn-tiny --dataset digits --device cpu {words} --json a.json", 1, f"Error: {said}")
        for words, said in {
            "--engine tensorrt": "TensorRT needs another device than cpu",
            "--precision bf16": "ONNX Runtime on cpu is measured only in fp32, int8",
        }.items()
    ),
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
    *((command, "--checkpoint list/a.json", 1, NO_CHECKPOINT) for command in (accuracy, latency)),
    (latency, "--checkpoint vitbn.safetensors", 2, OTHER_NAME),
    (latency, "--checkpoint a/runs/vit.safetensors --checkpoint b/runs/vit.safetensors", 2, OTHER_NAME),
    (
        accuracy,
        "--model vitbn-tiny --data-dir two-by-two",
        1,
        "Error: mnist: expected images (1, 28, 28) of 10 classes, as the model reads them, found (1, 2, 2) of 10",
    ),
    (
        accuracy,
        "--brought --conditions --model vitbn-tiny --dataset digits",
        2,
        "Error: expected --conditions or --brought, found both",
    ),
    *(
        (frontier, f"{words} --json a.json", 1, said)
        for words, said in {
            "--checkpoints half": "half.safetensors: expected a finished training with its test accuracy, found none",
            "--checkpoints mixed": "expected an accuracy on 10000 test images of mnist, "
            "found 359 test images of digits",
            "--checkpoints a/runs --checkpoints b/runs": "Error: b/runs/vit.safetensors: expected another folder or "
            "file name than a/runs/vit.safetensors, found runs/vit.safetensors",
            "--checkpoints damaged": "a.safetensors: expected safetensors",
        }.items()
    ),
    *((tune, f"--objective frontier {words} --output new", 2, SIZES) for words in ("--model cnn", "--depth 6")),
    *(
        (tune, f"--train-images 120 --device cpu --output new {words}", code, said)
        for words, code, said in (
            ("--trials 0", 2, "--trials"),
            ("--epochs 0", 2, "--epochs"),
            ("--train-images 119", 2, "--train-images"),
            ("--train-images 1152", 1, "up to the 1151 not held out, found 1152"),
            ("--seed -1", 2, "--seed"),
            ("--model dnn", 2, "--model"),
            ("--dataset cifar", 2, "--dataset"),
            ("--dataset mnist --data-dir nowhere", 1, "nowhere: expected train-images"),
        )
    ),
    (study, "dnn --data-dir none --output out", 1, "Error: none: expected train-images"),
    (study, "optimised --params searches --data-dir none --output out", 1, "Error: none: expected train-images"),
    (study, "dnn --data-dir mnist --output file", 1, "Error: file/runs: Not a directory"),
    *(
        (study, f"dnn --data-dir mnist --output out {words}", code, said)
        for words, code, said in (
            ("--epochs 0", 2, "--epochs"),
            ("--train-images 1", 2, "--train-images"),
            ("--train-images 121", 1, "mnist: expected at most 120 images, found 121"),
            ("--device abacus", 2, "--device"),
            ("--rate 0.02", 2, "--rate"),
        )
    ),
    *(
        (study, f"optimised --data-dir mnist --output out --params {words}", 1, said)
        for words, said in {
            "digits.best.json": "digits.best.json: expected options for mnist, found options for digits",
            "resnet.best.json": f"resnet.best.json: {OPTIONS} model: expected one of vit,",
            "colour.best.json": f"colour.best.json: {OPTIONS} TrainingOptions.__init__() got an unexpected keyword",
            "rateless.best.json": "rateless.best.json: expected lr, found none",
            "flat.best.json": f"flat.best.json: {OPTIONS} depth: expected an integer of at least 1",
            "right.best.json --params right.best.json": "expected another model than in the files before, found vitbn",
            "empty": "empty: expected files *.best.json",
        }.items()
    ),
    (report, "build empty", 1, "empty: expected JSON files of the benchmarks, found none"),
    (report, "build damaged", 1, "damaged/a.json: expected a JSON file"),
    (report, "build other", 1, f"other/a.json: {FORM}"),
    (report, "build list", 1, f"list/a.json: {FORM}"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, small_mnist: Path) -> Path:
    folder = tmp_path_factory.mktemp("refusals")
    for name in ("empty", "two-by-two", *(Path(path).parent for path in (*FILES, *CHECKPOINTS))):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, content in FILES.items():
        (folder / name).write_text(content)
    for name, (depth, metrics) in CHECKPOINTS.items():
        saved(folder / f"{name}.safetensors", replace(TINY, depth=depth), metrics)
    for name in MNIST_PARTS.values():
        write_idx(folder / "two-by-two" / name, np.arange(2) if "labels" in name else np.zeros((2, 2, 2)))
    (folder / "mnist").symlink_to(small_mnist)
    return folder


@pytest.mark.parametrize(("command", "words", "code", "said"), REFUSED, ids=lambda value: getattr(value, "name", None))
def test_what_is_refused(place: Path, command: click.Command, words: str, code: int, said: str) -> None:
    check_refused(place, command, words, code, said)
