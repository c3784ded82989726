"""Which model is chosen, what is refused, and what a server's failures become, without a server."""

import json
import socket
import threading

import numpy as np
import pytest

from clients import classifier as module
from clients.classifier import (
    Classifier,
    DeadlineExceeded,
    ModelMismatch,
    ModelNotFound,
    ModelNotReady,
    ServerError,
    ServerUnavailable,
)

IMAGES = np.arange(7 * 784, dtype=np.uint32).reshape(7, 1, 28, 28).astype(np.uint8)


def config(family="vitbn", accuracy=None, max_batch_size=3):
    description = {"model": family, "labels": list("abc"), "image_size": [28, 28], "channels": 1}
    parameters = {"model_config": {"string_value": json.dumps(description)}}
    if accuracy is not None:
        parameters["test_accuracy"] = {"string_value": accuracy}
    return {"max_batch_size": max_batch_size, "parameters": parameters}


class Repository:
    """Stands in for the connection: the models given, all of them ready unless their configuration is None."""

    url = "127.0.0.1:8000"

    def __init__(self, **configs):
        self.configs = configs
        self.image = {"name": "image", "datatype": "UINT8", "shape": [-1, 1, 28, 28]}
        self.batches = []
        self.scale = 1.0

    def models(self):
        refused = {"state": "UNAVAILABLE", "reason": "Invalid argument:\n  no such op"}
        return [{"name": name, **({"state": "READY"} if self.configs[name] else refused)} for name in self.configs]

    def ready(self, name):
        return bool(self.configs.get(name))

    def metadata(self, name):
        logits = {"name": "logits", "datatype": "FP32", "shape": [-1, 3]}
        return {"inputs": [self.image], "outputs": [logits]}

    def config(self, name):
        return self.configs[name]

    def infer(self, name, batch):
        self.batches.append(len(batch))
        sums = batch.sum(axis=(1, 2, 3), dtype=np.int64)
        return np.stack([sums % 5, sums % 7, sums % 11], axis=1).astype(np.float32) * self.scale, "4"

    def close(self):
        self.closed = True


@pytest.fixture
def connect(monkeypatch):
    def connected(repository, model=None):
        monkeypatch.setattr(module, "_Connection", lambda url, protocol, timeout_s: repository)
        return Classifier(model=model)

    return connected


@pytest.mark.parametrize(
    ("models", "chosen"),
    [
        ({"net": config("cnn")}, "net"),
        ({"a": config("cnn", "0.99"), "b": config("vit", "0.90")}, "b"),
        ({"a": config("vit", "0.90"), "b": config("vitbn", "0.95"), "c": config("vitbnffn")}, "b"),
        ({"b": config("vit", "0.95"), "a": config("vitbn", "0.95")}, "a"),
        ({"a": None, "b": config("cnn")}, "b"),
        ({"a": {"parameters": {}}, "b": config("cnn")}, "b"),
    ],
)
def test_the_model_asked_by_default(connect, models, chosen):
    assert connect(Repository(**models)).model.name == chosen


def test_models_that_cannot_be_asked(connect):
    repository = Repository(a=None, b=config())
    with pytest.raises(ModelNotFound, match=r"'c' is not at 127\.0\.0\.1:8000; there: a, b"):
        connect(repository, "c")
    assert repository.closed
    with pytest.raises(ModelNotReady, match=r"'a' is not ready .*: UNAVAILABLE, Invalid argument: no such op"):
        connect(repository, "a")
    with pytest.raises(ModelNotFound, match=r"no model is ready .* has a"):
        connect(Repository(a=None))
    with pytest.raises(ModelNotFound, match="nothing"):
        connect(Repository())


def test_a_model_that_takes_something_else_is_refused(connect):
    repository = Repository(a=config())
    repository.image["datatype"] = "FP32"
    with pytest.raises(ModelMismatch, match=r"'a': expected .*UINT8.*, found .*FP32"):
        connect(repository)
    for parameters in ({}, {"model_config": {"string_value": "[]"}}, {"model_config": {"string_value": "{"}}):
        with pytest.raises(ModelMismatch, match="parameters"):
            connect(Repository(a={"parameters": parameters}))


def test_more_than_a_batch_is_split_in_order(connect):
    repository = Repository(a=config(max_batch_size=3))
    asked = connect(repository)
    logits = asked.logits(IMAGES)
    assert repository.batches == [3, 3, 1]
    np.testing.assert_array_equal(logits, repository.infer("a", IMAGES)[0])
    assert [p.index for p in asked.classify(IMAGES)] == logits.argmax(axis=1).tolist()
    assert len(np.unique(logits, axis=0)) > 1


def test_a_server_that_does_not_batch_gets_one_at_a_time(connect):
    repository = Repository(a=config(max_batch_size=0))
    assert len(connect(repository).classify(IMAGES)) == 7
    assert repository.batches == [1] * 7


def test_prediction(connect):
    repository = Repository(a=config())
    repository.infer = lambda name, batch: (np.log(np.array([[0.2, 0.5, 0.3]], dtype=np.float32)), "4")
    (prediction,) = connect(repository).classify(IMAGES[:1])
    assert (prediction.label, prediction.index, prediction.version) == ("b", 1, "4")
    assert prediction.probability == pytest.approx(0.5)
    assert prediction.probabilities == pytest.approx((0.2, 0.5, 0.3))
    assert [label for label, _ in prediction.top(2)] == ["b", "c"]
    assert len(prediction.top(9)) == 3


def test_probabilities_of_huge_logits_are_finite(connect):
    repository = Repository(a=config())
    repository.scale = np.float32(1e37)
    for prediction in connect(repository).classify(IMAGES):
        assert sum(prediction.probabilities) == pytest.approx(1)


def test_logits_that_are_no_numbers_or_too_few_are_refused(connect):
    repository = Repository(a=config())
    repository.scale = np.float32("nan")
    with pytest.raises(ServerError, match="finite"):
        connect(repository).classify(IMAGES)
    repository.infer = lambda name, batch: (np.zeros((1, 3), dtype=np.float32), "4")
    with pytest.raises(ServerError, match=r"expected finite logits \(3, 3\), found \(1, 3\)"):
        connect(repository).logits(IMAGES)


@pytest.fixture
def listener():
    """A port whose owner answers every request with the bytes given, or with None never."""
    sockets = []

    def listen(reply):
        server = socket.create_server(("127.0.0.1", 0))
        sockets.append(server)

        def answer():
            while True:
                try:
                    client, _ = server.accept()
                    sockets.append(client)
                    if reply is not None:
                        client.recv(4096)
                        client.sendall(reply)
                        client.shutdown(socket.SHUT_RDWR)
                except OSError:  # the client went away, or the test is over
                    if server.fileno() == -1:
                        return

        threading.Thread(target=answer, daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield listen
    for opened in sockets:
        opened.close()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_that_never_answers(listener, protocol):
    with pytest.raises(DeadlineExceeded, match=r"did not answer within 0\.3 s"):
        Classifier(listener(None), protocol=protocol, timeout_s=0.3)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("reply", [b"", b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n<a>"])
def test_a_server_that_is_not_triton(listener, protocol, reply):
    with pytest.raises(ServerUnavailable, match="no Triton server answers"):
        Classifier(listener(reply), protocol=protocol, timeout_s=5)


def test_a_refusal_keeps_the_words_of_the_server(listener):
    words = b'{"error":"This protocol is restricted"}'
    head = b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(words)
    with pytest.raises(ServerError, match="answered: This protocol is restricted"):
        Classifier(listener(head + words))
