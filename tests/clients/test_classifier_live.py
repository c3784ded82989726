import asyncio
from pathlib import Path

import numpy as np
import pytest

from clients.classifier import (
    AsyncClassifier,
    Classifier,
    InvalidImage,
    ModelNotFound,
    Options,
    ServerUnavailable,
    list_models,
)
from clients.preprocess import read_image, to_model_input

pytestmark = pytest.mark.live

PROTOCOLS = ["http", "grpc"]


def url_of(server, protocol):
    return {"http": server.http_url, "grpc": server.grpc_url}[protocol]


def connect(server, protocol="http", kind=Classifier, **options):
    return kind(Options(url_of(server, protocol), protocol, **options), "vitbn")


@pytest.fixture(scope="module")
def images():
    from PIL import Image
    from sklearn.datasets import load_digits

    pictures = [Image.fromarray((image * 15.9).astype(np.uint8)) for image in load_digits().images[:300]]
    return np.stack([to_model_input(picture.resize((64, 64))) for picture in pictures])


@pytest.fixture(scope="module")
def expected(live_server, images):
    with connect(live_server, batch_size=1) as classifier:
        return classifier.logits(images)


def close(logits, expected):
    """Kernels differ by batch size; digits differ by whole logits."""
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("batch_size", [60, 100_000])
def test_every_way_gives_the_same_answers(live_server, images, expected, protocol, batch_size):
    with connect(live_server, protocol, batch_size=batch_size) as classifier:
        close(classifier.logits(images), expected)
        best = expected.argmax(axis=1).tolist()
        assert [prediction.index for prediction in classifier.classify(images)] == best
        assert [prediction.index for prediction in classifier.stream(iter(images))] == best
    assert len({*best}) > 5


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_way_with_asyncio(live_server, images, expected, protocol):
    async def ask():
        asking = connect(live_server, protocol, AsyncClassifier, batch_size=60)
        async with asking as classifier:
            logits, predictions = await asyncio.gather(classifier.logits(images), classifier.classify(images))
            streamed = [prediction.index async for prediction in classifier.stream(images[:50])]
            return logits, [prediction.index for prediction in predictions], streamed

    logits, classified, streamed = asyncio.run(ask())
    close(logits, expected)
    assert classified == expected.argmax(axis=1).tolist()
    assert streamed == classified[:50]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_more_than_the_model_takes_is_split(live_server, images, expected, protocol):
    with connect(live_server, protocol, batch_size=100_000) as classifier:
        limit = classifier.model.max_batch_size
        copies = 2 * limit // len(images) + 1
        many = np.concatenate([images] * copies)[: 2 * limit + 1]
        close(classifier.logits(many), np.concatenate([expected] * copies)[: 2 * limit + 1])


def test_the_digit_in_a_picture(live_server):
    picture = Path(__file__).resolve().parents[2] / "digit.png"
    with connect(live_server) as classifier:
        (prediction,) = classifier.classify(to_model_input(read_image(picture))[None])
    assert prediction.label == "3"
    assert prediction.top(1) == [("3", prediction.probability)]
    assert prediction.probability == max(prediction.probabilities)
    assert prediction.latency_ms > 0
    assert int(prediction.version) >= 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_no_batch_of_images_is_refused(live_server, images, protocol):
    with connect(live_server, protocol) as classifier:
        assert classifier.classify(images[:0]) == list(classifier.stream([])) == []
        assert classifier.logits(images[:0]).shape == (0, 10)
        for wrong in (images.astype(np.float32), images[:, 0], images[:, :, :27], images[0]):
            with pytest.raises(InvalidImage, match=r"expected uint8 \(n, 1, 28, 28\), found"):
                classifier.classify(wrong)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_models_of_a_server(live_server, protocol):
    (listed,) = list_models(Options(url_of(live_server, protocol), protocol))
    with (
        connect(live_server, protocol) as classifier,
        Classifier(Options(url_of(live_server, protocol), protocol)) as first,
    ):
        assert classifier.models() == [listed]
        assert listed.model == classifier.model == first.model
    assert (listed.name, listed.model.family, listed.model.labels) == ("vitbn", "vitbn", tuple("0123456789"))
    assert 0.9 < listed.model.test_accuracy <= 1
    assert listed.model.versions == ("1",)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_model_that_is_not_there(live_server, protocol):
    for name in ("resnet", "", "vitbn/versions/1", "..", "vitbn?", "vit bn"):
        with pytest.raises(ModelNotFound, match="there: vitbn"):
            Classifier(Options(url_of(live_server, protocol), protocol), name)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_port_of_the_other_protocol(live_server, protocol):
    other = {"http": live_server.grpc_url, "grpc": live_server.http_url}[protocol]
    with pytest.raises(ServerUnavailable, match="no Triton server answers"):
        Classifier(Options(other, protocol, retry_s=0))
