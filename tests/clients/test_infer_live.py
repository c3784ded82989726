"""The client against the real tritonserver with a `vitbn` model, over both protocols."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from clients.classifier import Classifier, InvalidImage, ModelNotFound, ServerUnavailable
from clients.infer import infer
from clients.preprocess import read_image, to_model_input

pytestmark = pytest.mark.live

DIGIT_PNG = str(Path(__file__).resolve().parents[2] / "digit.png")
DIGIT = "3"
PROTOCOLS = ["http", "grpc"]


def url_of(server, protocol):
    return {"http": server.http_url, "grpc": server.grpc_url}[protocol]


def run(server, protocol, *arguments):
    command = [DIGIT_PNG, "--url", url_of(server, protocol), "--protocol", protocol, "--model", "vitbn", *arguments]
    return CliRunner().invoke(infer, command)


def open_classifier(server, protocol="http"):
    return Classifier(url_of(server, protocol), model="vitbn", protocol=protocol)


@pytest.fixture(scope="module")
def images():
    """Digits of scikit-learn through our own preprocessing, more than any batch: uint8 (300, 1, 28, 28)."""
    from PIL import Image
    from sklearn.datasets import load_digits

    pictures = [Image.fromarray((image * 15.9).astype(np.uint8)) for image in load_digits().images[:300]]
    return np.stack([to_model_input(picture.resize((64, 64))) for picture in pictures])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_digit_png(live_server, protocol):
    result = run(live_server, protocol)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"{DIGIT_PNG}: {DIGIT} (")
    assert result.stdout.endswith(" %)\n")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_top(live_server, protocol):
    lines = run(live_server, protocol, "--top", "4").stdout.splitlines()
    assert len(lines) == 5
    assert lines[1].split()[0] == DIGIT
    shares = [float(line.split()[1]) for line in lines[1:]]
    assert shares == sorted(shares, reverse=True)
    assert len({len(line) for line in lines[1:]}) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_json(live_server, protocol):
    answer = json.loads(run(live_server, protocol, "--json", "--top", "10").stdout)
    assert list(answer) == ["file", "label", "probability", "top", "model", "version", "latency_ms"]
    assert (answer["file"], answer["label"], answer["model"]) == (DIGIT_PNG, DIGIT, "vitbn")
    assert answer["top"][0] == {"label": DIGIT, "probability": answer["probability"]}
    assert sum(entry["probability"] for entry in answer["top"]) == pytest.approx(1)
    assert int(answer["version"]) >= 1
    assert answer["latency_ms"] > 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unknown_model(live_server, protocol):
    result = run(live_server, protocol, "--model", "resnet")
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    assert "'resnet'" in result.stderr
    assert "vitbn" in result.stderr  # what is there instead
    with pytest.raises(ModelNotFound):
        Classifier(url_of(live_server, protocol), model="resnet", protocol=protocol)


def test_without_a_name_a_transformer_answers(live_server):
    with Classifier(live_server.http_url) as classifier:
        assert classifier.model.family != "cnn"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_more_than_a_batch_keeps_the_order(live_server, images, protocol):
    with open_classifier(live_server, protocol) as classifier:
        limit = classifier.model.max_batch_size
        many = np.concatenate([images] * (2 * limit // len(images) + 1))[: 2 * limit + 1]
        together = classifier.logits(many)
        shown = [0, 1, limit - 1, limit, limit + 1, 2 * limit]
        alone = np.concatenate([classifier.logits(many[index : index + 1]) for index in shown])
        # Kernels differ between batch sizes; different digits differ by whole logits.
        np.testing.assert_allclose(together[shown], alone, rtol=1e-4, atol=1e-4)
        predictions = classifier.classify(many)
    assert [prediction.index for prediction in predictions] == together.argmax(axis=1).tolist()
    assert len({prediction.label for prediction in predictions}) > 5


def test_both_protocols_agree(live_server, images):
    with open_classifier(live_server, "http") as http, open_classifier(live_server, "grpc") as grpc:
        np.testing.assert_allclose(http.logits(images), grpc.logits(images), rtol=1e-4, atol=1e-4)
        assert http.model == grpc.model


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_no_batch_of_images_is_refused(live_server, images, protocol):
    with open_classifier(live_server, protocol) as classifier:
        assert classifier.classify(images[:0]) == []
        assert classifier.logits(images[:0]).shape == (0, 10)
        for wrong in (images.astype(np.float32), images[:, 0], images[:, :, :27], images[0]):
            with pytest.raises(InvalidImage, match=r"expected uint8 \(n, 1, 28, 28\), found"):
                classifier.classify(wrong)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_port_of_the_other_protocol(live_server, protocol):
    other = {"http": live_server.grpc_url, "grpc": live_server.http_url}[protocol]
    with pytest.raises(ServerUnavailable, match="no Triton server answers"):
        Classifier(other, protocol=protocol)


def test_digit_png_through_the_library(live_server):
    with open_classifier(live_server) as classifier:
        (prediction,) = classifier.classify(to_model_input(read_image(DIGIT_PNG))[None])
    assert prediction.label == DIGIT
    assert prediction.top(1) == [(DIGIT, prediction.probability)]
    assert prediction.probability == max(prediction.probabilities)
