"""The shipped checkpoints: each gets right what it says it does, before and after export."""

import pytest
import torch
from click.testing import CliRunner

from export.equivalence import onnx_classifier
from export.graph import export
from export.rewrites.pipeline import ALL
from models.catalog import PRETRAINED, SHIPPED, matching, models, shipped
from models.checkpoint import load, read_config
from models.config import ModelConfig
from models.data import load_dataset
from models.training import measure_accuracy

LEAST = dict.fromkeys(SHIPPED, 0.994) | {"vitbn-small": 0.993, "vitbn-tiny": 0.986, "cnn": 0.996}
DEPTHS = {"vitbn-medium": 4, "vitbn-small": 2, "vitbn-tiny": 1}
BATCH = 500


@pytest.fixture(scope="module")
def test_part(mnist_dir):
    data = load_dataset("mnist", mnist_dir)
    return data.test_images, data.test_labels


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_accuracy_before_and_after_export(name, test_part):
    images, labels = test_part
    checkpoint = load(shipped(name))
    recorded = checkpoint.metrics["test_accuracy"]
    measured = measure_accuracy(checkpoint.model, torch.tensor(images), torch.tensor(labels))
    assert measured == pytest.approx(recorded, abs=1e-4), "one image of 10,000 may be a tie"
    assert measured >= LEAST[name] - 1e-4
    classify = onnx_classifier(export(checkpoint, ALL).onnx)
    right = sum(
        (classify(images[start : start + BATCH]).argmax(1) == labels[start : start + BATCH]).sum()
        for start in range(0, len(labels), BATCH)
    )
    assert right / len(labels) == pytest.approx(measured, abs=1e-4)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_checkpoint_says_how_it_was_trained(name):
    checkpoint = load(shipped(name))
    metrics, model = checkpoint.metrics, name.split("-")[0]
    assert checkpoint.config == ModelConfig(model=model, depth=DEPTHS.get(name, 6))
    assert (metrics["dataset"], metrics["test_images"]) == ("mnist", 10_000)
    assert metrics["options"]["hold_out"] == 5000, "epochs were measured on images that are not the test's"
    assert metrics["epochs"] == metrics["options"]["epochs"], "trained to the end of its schedule"
    assert metrics["command"].startswith(f"python models/train.py --model {model} --dataset mnist")
    assert f"--seed {metrics['options']['seed']}" in metrics["command"]
    taught = name in ("vit", "vitbnffn")
    assert ("--teacher models/pretrained/cnn.safetensors" in metrics["command"]) == taught


def test_all_together_are_small():
    files = sorted(PRETRAINED.glob("*.safetensors"))
    assert sorted(file.stem for file in files) == sorted(SHIPPED)
    assert sum(file.stat().st_size for file in files) < 20e6


def test_matching_architecture():
    assert matching(ModelConfig(model="vitbn", depth=2)) == shipped("vitbn-small")
    assert matching(ModelConfig(model="vitbn", depth=3)) is None
    assert matching(ModelConfig(model="vitbn", depth=2, pool="mean")) is None


def test_the_list_names_each_with_its_numbers():
    result = CliRunner().invoke(models)
    assert result.exit_code == 0, result.output
    rows = {row.split()[0]: row.split()[1:] for row in result.output.splitlines()[1 : 1 + len(SHIPPED)]}
    assert list(rows) == list(SHIPPED)
    for name, (model, depth, accuracy, *_) in rows.items():
        config = read_config(shipped(name))
        assert (model, depth) == (config.model, "-" if model == "cnn" else str(config.depth))
        assert float(accuracy) == pytest.approx(100 * load(shipped(name)).metrics["test_accuracy"], abs=0.005)
    assert rows["vitbn"][3] == "16.87"
