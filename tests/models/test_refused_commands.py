"""What `train`, `adapt` and `calibrate` refuse: an exit code, one line, and no file written or changed."""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
import random_networks
import torch
from refusals import check_refused
from striped_folder import written_pictures

from models.adapt import adapt
from models.calibrate import calibrate
from models.checkpoints.checkpoint import save
from models.data import load_digits
from models.networks.config import ModelConfig
from models.networks.registry import build
from models.train import train

TINY = ModelConfig(dim=16, depth=1, heads=2, dim_head=8, mlp_dim=16)
VIT = replace(TINY, model="vit")
OTHERS = replace(VIT, image_size=(14, 14))
METRICS = {  # of checkpoints for other images
    "half": {"dataset": "mnist", "options": {"hold_out": 5.5}},
    "nowhere": {"options": {"hold_out": 5}},
    "photos": {"dataset": "photos", "options": {"hold_out": 5}},
    "all": {"dataset": "mnist", "options": {"hold_out": 0}},
    "fitted": {"dataset": "mnist", "adapted": {}, "command": "vitbn adapt vitbn scans", "test_images": 10000},
    "small": {"dataset": "mnist", "options": {"hold_out": 5}},
    "typed": {"dataset": "mnist", "options": {}, "command": "vitbn train --dataset mnist", "test_images": 10000},
}
CHECKPOINT = "'--output': expected a file for the checkpoint, such as run.safetensors, found "
REPORT = "expected a file such as report.html, found "
PIXELS = "expected the model's 28 x 28 pixels, light on black, found 32 x 32"
ABSENT = "expected it on this machine, found none"
NOTHING_KEPT = "expected a training with --hold-out, found none"
REPLACED = "expected no such file yet, found one; --resume goes on, --overwrite replaces"
OPTIONS = {  # of files for --params
    "another model": ({"model": "vit"}, "expected the model that --params is for, vit, found vitbn"),
    "zero": ({"lr": 0}, "0.0 is not in the range"),
    "words": ({"lr": "much"}, "'much' is not a valid float"),
    "several": ({"lr": [0.1]}, "expected one value for lr, found [0.1]"),
    "a fraction": ({"batch_size": 1.9}, "'1.9' is not a valid integer"),
    "one of two": ({"patch_size": 7}, "expected 2 values for patch_size, found 7"),
}
NO_OPTIONS = "expected a JSON object of options, found"
NO_VALUES = (
    *(
        "--lr 0",
        "--lr nan",
        "--lr inf",
        "--dropout nan",
        "--weight-decay nan",
        "--label-smoothing nan",
        "--clip inf",
        "--ema nan",
    ),
    *("--batch-size 0", "--batch-size 1", "--depth 0", "--epochs 0", "--seed -1", f"--seed {2**63}"),
    *("--model resnet", "--device abacus"),
)
ROWS = [
    (train, "--hold-out 5000", 1, "Error: digits: expected to hold out 1 to 1436 of 1438 images, found 5000"),
    (train, "--adapt-to 'new scans/'", 2, "--adapt-to: expected the command vitbn adapt CHECKPOINT 'new scans/'"),
    (train, "--output text/new.safetensors", 1, "Error: text/new.safetensors: Not a directory"),
    *((train, f"--output {path}", 2, CHECKPOINT) for path in ("run.json", "lr0.01", ".", "pipe")),
    *((train, f"--report {path}", 2, f"{REPORT}{path}") for path in (".", "report.png", "report")),
    (train, "--report old.html", 1, f"Error: old.html: {REPLACED}"),
    (train, "--output old.safetensors", 1, f"Error: old.safetensors: {REPLACED}"),
    (train, "--output exported.safetensors", 1, f"Error: exported.json: {REPLACED}"),
    *(
        (train, f"--output exported.safetensors {how}", 1, "exported.json: expected the record of a training, found")
        for how in ("--overwrite", "--resume")
    ),
    (train, "--image-size 32 32", 1, "Error: --image-size: expected a folder as --dataset, found digits"),
    *((train, f"--model vitbn --params '{name}'", 2, said) for name, (_, said) in OPTIONS.items()),
    (train, "--params text", 2, f"text: {NO_OPTIONS}"),
    (train, "--params nothing", 2, f"nothing: {NO_OPTIONS} No such file or directory"),
    (train, "--params deep", 2, f"deep: {NO_OPTIONS} maximum recursion depth exceeded"),
    (train, "--report /proc/report.html", 1, "Error: /proc/report.html: No such file or directory"),
    *(
        (train, f"--dim {dim} --device cpu", 1, f"fits its memory, found depth 1, dim {dim}, heads 8")
        for dim in (10**11, 10**19, 10**30)
    ),
    *((train, f"--device {name}", 1, f"device {name}: {ABSENT}") for name in ("cuda", "mps")),
    *((train, words, 2, words.split()[0]) for words in NO_VALUES),
    (adapt, "vit pictures", 1, "Error: vit: expected a network with BatchNorm, found VisionTransformer without"),
    (adapt, "saved few", 1, "Error: few: expected at least 50 pictures, found 49"),
    (adapt, "saved large", 1, f"Error: large/000.png: {PIXELS}"),
    (adapt, "saved damaged", 1, "Error: damaged/007.png: expected a picture, found "),
    (adapt, "saved pictures --output saved", 1, "Error: saved: expected another file than the checkpoint"),
    (adapt, "saved pictures --output half", 1, "Error: half: expected nothing or a checkpoint of vitbn adapt, found"),
    (adapt, "saved pictures --output text", 1, "Error: text: expected safetensors or a PyTorch state dict"),
    (adapt, "loop pictures", 2, "'CHECKPOINT': loop: Too many levels of symbolic links"),
    (adapt, "saved none", 1, "Error: none: No such file or directory"),
    (adapt, "saved .", 1, " and 5 folders"),
    (calibrate, "half", 1, "Error: half: expected --hold-out N of a --dataset in the metrics"),
    (calibrate, "nowhere", 1, "in the metrics, found 5, None"),
    (calibrate, "photos", 1, "in the metrics, found 5, 'photos'"),
    (calibrate, "all", 1, f"Error: all: {NOTHING_KEPT}"),
    (calibrate, "fitted", 1, "Error: fitted: expected a checkpoint of vitbn train, found one of vitbn adapt, of whose"),
    (calibrate, "small", 1, "images of the shape (1, 14, 14), found (1, 28, 28)"),
    (
        calibrate,
        "typed",
        1,
        f"Error: typed: {NOTHING_KEPT}; keep a part of the training images for it: "
        "vitbn train --dataset mnist --hold-out 5000",
    ),
]
USUAL = {
    train: "--depth 1 --epochs 1 --output new.safetensors",
    adapt: "--output new.safetensors",
    calibrate: "--data-dir mnist",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory, small_mnist):
    folder, images = tmp_path_factory.mktemp("refusals"), load_digits().test_images[:50]
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    for name in ("text", "old.html", "old.safetensors", "exported.json"):
        (folder / name).write_text("mine")
    for name, (options, _) in OPTIONS.items():
        (folder / name).write_text(json.dumps(options))
    (folder / "deep").write_text("[" * 100_000)
    (folder / "mnist").symlink_to(small_mnist)
    random_networks.saved(folder / "saved", TINY)
    save(folder / "vit", build(VIT), VIT, {})
    for name, metrics in METRICS.items():
        save(folder / name, build(OTHERS), OTHERS, metrics)
    written_pictures(folder / "pictures", images)
    written_pictures(folder / "few", images[:49])
    written_pictures(folder / "large", np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2))))
    (written_pictures(folder / "damaged", images) / "007.png").write_bytes(b"no picture")
    return folder


@pytest.mark.parametrize(("command", "words", "code", "said"), ROWS)
def test_one_line_and_nothing_written(place, command, words, code, said):
    if "--device cuda" in words and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    if "--device mps" in words and torch.backends.mps.is_available():
        pytest.skip("this machine has MPS")
    printed = check_refused(place, command, f"{USUAL[command]} {words}", code, said)
    assert not re.search("^ +1 ", printed, re.MULTILINE), "refused before the first epoch"
