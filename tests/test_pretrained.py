import hashlib
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import torch
from commands import ok
from pytorch_macs import macs_per_image
from safetensors import safe_open

from export.checkpoint_to_onnx import Form
from export.checkpoint_to_version import export_checkpoint
from export.compare_logits import onnx_classifier
from models.calibrate import measure
from models.catalog import OF_DIGITS, OF_GARMENTS, PRETRAINED, SHIPPED, matching, models, shipped
from models.checkpoints.checkpoint import load
from models.data import FASHION_MNIST_LABELS, load_dataset
from models.evaluation.accuracy_and_calibration import measure_accuracy
from models.networks.config import ModelConfig

LEAST = dict.fromkeys(SHIPPED, 0.993) | {
    "vitbn-late-deep": 0.996,
    "vitbn-late-64": 0.995,
    "vitbn-coarse": 0.995,
    "vitbn-tiny": 0.985,
    "cnn": 0.995,
    "garments": 0.932,
    "garments-cnn": 0.940,
}
DEPTHS = {"vitbn-tiny": 1}
SIZES = {
    "vitbn-late-deep": {"depth": 5, "heads": 4, "class_attention": (32, 16), "standardise": True},
    "vitbn-late-64": {"depth": 2, "heads": 4, "mlp_dim": 256, "class_attention": (32, 16), "standardise": True},
    "garments": {"depth": 2, "heads": 4, "mlp_dim": 256, "class_attention": (32, 16), "standardise": True},
    "vitbn-coarse": {
        **{"patch_size": (14, 14), "depth": 5, "dim": 48, "heads": 1, "dim_head": 32, "mlp_dim": 96},
        **{"class_attention": (4, 64), "standardise": True},
    },
}
LOOKS = {"labels": FASHION_MNIST_LABELS, "preprocessing": "photo", "background": "dark", "fill": 0.93}
BATCH = 100
SOME = 200  # images
# First 16 digits of the SHA-256 of names and tensors: metadata may change, weights may not.
WEIGHTS = {
    "cnn": "f0c18cfc5e6bd465",
    "vit": "a10301ede5d4d0c0",
    "vitbn-tiny": "20b795b42e5f3469",
    "vitbn-late-deep": "e2503c5fac5facc4",
    "vitbn-late-64": "db1e8875ebcefe14",
    "vitbn-coarse": "327cf4b53b265454",
    "vitbn": "a8ac37e9654d5c63",
    "vitbnffn": "8ae1857c34a68337",
    "garments": "f0aa683ae946dfdf",
    "garments-cnn": "f7c2bd0a994dc48e",
}


def dataset_of(name):
    return "fashion-mnist" if name in OF_GARMENTS else "mnist"


@pytest.fixture(scope="module")
def load_test_pictures(request):
    @cache
    def loaded(dataset):
        data = load_dataset(dataset, request.getfixturevalue(f"{dataset.replace('-', '_')}_dir"))
        return data.test_images, data.test_labels

    return loaded


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_accuracy_before_and_after_export(name, load_test_pictures):
    images, labels = load_test_pictures(dataset_of(name))
    checkpoint = load(shipped(name))
    recorded = checkpoint.metrics["test_accuracy"]
    classify = onnx_classifier(export_checkpoint(shipped(name), Form(rewrites="all")).onnx)
    right = np.concatenate(
        [
            classify(images[start : start + BATCH]).argmax(1) == labels[start : start + BATCH]
            for start in range(0, len(labels), BATCH)
        ]
    )
    assert right.mean() == pytest.approx(recorded, abs=1e-4), "one image of 10,000 may be a tie"
    assert right.mean() >= LEAST[name] - 1e-4
    some = right.argsort(kind="stable")[:SOME]  # the errors first
    before = measure_accuracy(checkpoint.model, torch.tensor(images[some]), torch.tensor(labels[some]))
    assert before == pytest.approx(right[some].mean(), abs=1e-9)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_checkpoint_says_how_it_was_trained(name):
    checkpoint = load(shipped(name))
    metrics, model = checkpoint.metrics, checkpoint.config.model
    assert name.startswith(model) or name in OF_GARMENTS
    expected = {"model": model, "depth": DEPTHS.get(name, 6)} | SIZES.get(name, {})
    assert checkpoint.config == ModelConfig(**expected | (LOOKS if name in OF_GARMENTS else {}))
    assert (metrics["dataset"], metrics["test_images"]) == (dataset_of(name), 10_000)
    assert metrics["options"]["hold_out"] == 5000, "epochs were measured on images that are not the test's"
    assert metrics["epochs"] == metrics["options"]["epochs"], "trained to the end of its schedule"
    assert metrics["command"].startswith(("python models/train.py ", "vitbn train "))
    assert f"--model {model} " in metrics["command"] or (model == "vitbn" and "--model" not in metrics["command"])
    assert f"--dataset {dataset_of(name)}" in metrics["command"]
    seed = metrics["options"]["seed"]
    assert f"--seed {seed}" in metrics["command"] or (seed == 0 and "--seed" not in metrics["command"])
    if name in OF_DIGITS:
        assert ("--teacher models/pretrained/cnn.safetensors" in metrics["command"]) == (name != "cnn")
    assert f"--augment {'pens' if name in OF_DIGITS else 'flip-erase'}" in metrics["command"]


@pytest.mark.parametrize("name", SHIPPED)
def test_weights_are_those_of_the_training(name):
    digest = hashlib.sha256()
    with safe_open(shipped(name), "np") as file:
        for tensor in sorted(file.keys()):
            digest.update(tensor.encode() + file.get_tensor(tensor).tobytes())
    assert digest.hexdigest()[:16] == WEIGHTS[name]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_checkpoint_is_calibrated(name):
    metrics = load(shipped(name)).metrics
    highest, error = (1.05, 0.005) if name in OF_DIGITS else (1.1, 0.012)
    assert 0.5 < metrics["temperature"] < highest, "a teacher and hard pictures make a network modest, never sure"
    spread = 0.0005  # a temperature of nearly 1, from held-out images, may be worse by chance on the test's
    assert metrics["calibration_error"] < min(error, metrics["calibration_error_before"] + spread)


@pytest.mark.slow
def test_calibration_is_measured_again(mnist_dir):
    checkpoint = load(shipped("vitbn-tiny"))
    for name, value in measure(checkpoint, mnist_dir).items():
        assert value == pytest.approx(checkpoint.metrics[name], abs=1e-3)


def test_all_together_are_small():
    files = sorted(PRETRAINED.glob("*.safetensors"))
    assert sorted(file.stem for file in files) == sorted(SHIPPED)
    assert sum(file.stat().st_size for file in files) < 20e6


def test_matching_architecture():
    assert matching(ModelConfig(model="vitbn", depth=1)) == shipped("vitbn-tiny")
    assert matching(ModelConfig(model="vitbn", depth=3)) is None
    assert matching(ModelConfig(model="vitbn", depth=1, pool="mean")) is None


def test_the_list_names_each_with_its_numbers():
    result = ok(models)
    rows = {row.split()[0]: row.split()[1:] for row in result.output.splitlines()[1 : 1 + len(SHIPPED)]}
    assert list(rows) == list(SHIPPED)
    for name, (model, dataset, depth, accuracy, macs, parameters, epochs) in rows.items():
        checkpoint = load(shipped(name))
        config, metrics = checkpoint.config, checkpoint.metrics
        assert (model, dataset) == (config.model, metrics["dataset"])
        assert depth == ("-" if model == "cnn" else str(config.depth))
        assert float(accuracy) == pytest.approx(100 * metrics["test_accuracy"], abs=0.005)
        assert macs == f"{macs_per_image(checkpoint.model) / 1e6:.2f}", "PyTorch's own count"
        assert parameters == f"{sum(each.numel() for each in checkpoint.model.parameters()):,}"
        assert epochs == str(metrics["epochs"])


@pytest.mark.parametrize("package", ["torch", "safetensors"])
def test_the_list_needs_no_library(package):
    without = f"import sys; sys.modules[{package!r}] = None; import vitbn; vitbn.main(['models'])"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ok(models).output
