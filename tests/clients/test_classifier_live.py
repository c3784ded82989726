import asyncio

import numpy as np
import pytest
import tritonclient.http as http

from clients.classifier import AsyncClassifier, Classifier, ModelNotFound, Options, list_models
from clients.preprocess import to_model_input

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
def expected(trained, images):
    """The logits of the checkpoint."""
    import torch

    from models.checkpoints.checkpoint import load

    with torch.inference_mode():
        return load(trained).model(torch.tensor(images) / 255).numpy()


def close(logits, expected):
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_way_gives_the_same_answers(live_server, images, expected, protocol):
    best = expected.argmax(axis=1).tolist()
    assert len({*best}) > 5
    with connect(live_server, protocol, batch_size=60) as classifier:
        close(classifier.logits(images), expected)
        assert [prediction.index for prediction in classifier.classify(images)] == best
        assert [prediction.index for prediction in classifier.stream(iter(images))] == best

    async def ask():
        async with connect(live_server, protocol, AsyncClassifier, batch_size=100_000) as classifier:
            logits, predictions = await asyncio.gather(classifier.logits(images), classifier.classify(images))
            close(logits, expected)
            assert [prediction.index for prediction in predictions] == best
            assert [prediction.index async for prediction in classifier.stream(images)] == best

    asyncio.run(ask())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_models_of_a_server_are_listed_and_a_missing_model_names_them(live_server, protocol):
    options = Options(url_of(live_server, protocol), protocol)
    (listed,) = list_models(options)
    with connect(live_server, protocol) as classifier, Classifier(options) as first:
        assert classifier.models() == [listed]
        assert listed.model == classifier.model == first.model
    assert (listed.name, listed.model.family, listed.model.labels) == ("vitbn", "vitbn", tuple("0123456789"))
    assert 0.9 < listed.model.test_accuracy <= 1
    assert listed.model.versions == ("1",)
    for name in ("resnet", "", "vitbn/versions/1", "..", "vitbn?", "vit bn"):
        with pytest.raises(ModelNotFound, match="there: vitbn"):
            Classifier(options, name)


def test_labels_come_with_tritons_classification_extension(live_server, images):
    images = images[:3]
    tensor = http.InferInput("image", list(images.shape), "UINT8")
    tensor.set_data_from_numpy(images)
    with http.InferenceServerClient(live_server.http_url) as client:
        logits = client.infer("vitbn", [tensor]).as_numpy("logits")
        output = http.InferRequestedOutput("logits", class_count=1)
        classes = client.infer("vitbn", [tensor], outputs=[output]).as_numpy("logits")
    assert [text.decode().split(":")[2] for text in classes.ravel()] == [str(i) for i in logits.argmax(1)]
