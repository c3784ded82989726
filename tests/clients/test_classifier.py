import json
from contextlib import nullcontext

import numpy as np
import pytest
from stand_in import expected_logits

from clients import classifier as module
from clients.classifier import (
    Classifier,
    InvalidImage,
    ModelMismatch,
    ModelNotFound,
    ModelNotReady,
    Options,
    ServerError,
)
from clients.prediction import probabilities, top_probabilities
from clients.web.triton_requests import Triton

IMAGES = np.arange(7 * 784, dtype=np.uint32).reshape(7, 1, 28, 28).astype(np.uint8)


def config(family="vitbn", accuracy=None, max_batch_size=3, labels="abc", **others):
    description = {"model": family, "labels": list(labels), "image_size": [28, 28], "channels": 1, **others}
    parameters = {"model_config": {"string_value": json.dumps(description)}}
    if accuracy is not None:
        parameters["test_accuracy"] = {"string_value": accuracy}
    return {"max_batch_size": max_batch_size, "parameters": parameters}


class Repository:
    """A stub connection; configuration None: not ready."""

    url = "127.0.0.1:8000"

    def __init__(self, **configs):
        self.configs = configs
        self.image = {"name": "image", "datatype": "UINT8", "shape": [-1, 1, 28, 28]}
        self.batches = []
        self.scale = 1.0

    async def ask(self, question, *arguments):
        return await getattr(self, question.__name__)(*arguments)

    async def models(self):
        refused = {"state": "UNAVAILABLE", "reason": "Invalid argument:\n  no such op"}
        return [{"name": name, **({"state": "READY"} if self.configs[name] else refused)} for name in self.configs]

    async def ready(self, name):
        return bool(self.configs.get(name))

    async def metadata(self, name):
        logits = {"name": "logits", "datatype": "FP32", "shape": [-1, 3]}
        return {"versions": ["4"], "inputs": [self.image], "outputs": [logits]}

    async def config(self, name):
        return self.configs[name]

    async def infer(self, name, batch):
        self.batches.append(len(batch))
        return expected_logits(batch) * self.scale, "4"

    async def close(self):
        self.closed = True


def answering(logits, version="4"):
    async def infer(name, batch):
        return logits, version

    return infer


@pytest.fixture
def connect(monkeypatch):
    def connected(repository, model=None):
        monkeypatch.setattr(module, "Connection", lambda options: repository)
        opened.append(Classifier(Options(concurrency=1), model))
        return opened[-1]

    opened = []
    yield connected
    for each in opened:
        each.close()


@pytest.mark.parametrize(
    ("models", "chosen"),
    [
        ({"net": config("cnn")}, "net"),
        ({"a": config("cnn", "0.99"), "b": config("vit", "0.90")}, "b"),
        ({"a": config("vit", "0.90"), "b": config("vitbn", "0.95"), "c": config("vitbnffn")}, "b"),
        ({"b": config("vit", "0.95"), "a": config("vitbn", "0.95")}, "a"),
        ({"a": config(accuracy="0.9"), "b": config(accuracy="1.0", labels="cba")}, "b"),
        ({"a": None, "b": config("cnn")}, "b"),
        ({"a": {"parameters": {}}, "b": config("cnn")}, "b"),
    ],
)
def test_the_model_asked_by_default(connect, models, chosen):
    assert connect(Repository(**models)).model.name == chosen


@pytest.mark.parametrize("labels", ["xyz", "abd"])
def test_models_of_different_labels_are_not_chosen_from(connect, labels):
    repository = Repository(best=config("vitbn", "1.0"), other=config("cnn", "0.9", labels=labels))
    with pytest.raises(ModelNotFound, match=rf"--model\).*: best \(a b c\), other \({' '.join(labels)}\)$"):
        connect(repository)
    assert repository.closed
    assert connect(repository, "other").model.labels == tuple(labels)


def test_the_page_does_not_choose_from_models_of_different_labels(monkeypatch):
    repository = Repository(a=config(), b=config(labels="xyz"))
    monkeypatch.setattr(module, "Connection", lambda options: repository)
    page = Triton(Options())
    found = page.models()
    assert ([model.name for model in found.ready], found.preferred) == (["a", "b"], "a")
    with pytest.raises(ModelNotFound, match=r"--model\).*: a \(a b c\), b \(x y z\)$"):
        page.ask(b"", None)


def test_a_model_of_another_origin_is_named_where_others_have_its_labels(connect):
    """Nobody knows which is best, and "class 0" of two networks need not be the same."""
    framing = {"fit": "squash", "size": [28, 28], "resample": "box", "like": "timm", "fill": []}
    other = config("other", preprocessing="photo", framing=framing)
    assert connect(Repository(a=other)).model.name == "a"
    with pytest.raises(
        ModelNotFound, match=r"--model\), found models of unknown accuracy at .*: a \(a b c\), b \(a b c\)$"
    ):
        connect(Repository(a=other, b=config(accuracy="0.9")))


def test_models_that_cannot_be_asked(connect):
    repository = Repository(a=None, b=config())
    with pytest.raises(
        ModelNotFound, match=r"'z' is not at 127\.0\.0\.1:8000; there: a, b \(a b c\); if it is published: "
    ):
        connect(repository, "z")
    assert repository.closed
    with pytest.raises(ModelNotReady, match=r"'a' is not ready .*: UNAVAILABLE, Invalid argument: no such op"):
        connect(repository, "a")
    with pytest.raises(ModelNotFound, match=r"no model is ready .* has a"):
        connect(Repository(a=None))
    with pytest.raises(ModelNotFound, match="has nothing; publish a model, such as by vitbn export"):
        connect(Repository())


@pytest.mark.parametrize("wrong", ["garmets", "shirt"])
def test_a_wrong_name_suggests_by_name_and_by_label(connect, wrong):
    repository = Repository(digits=config(), garments=config(labels=["T-shirt/top", "Shirt", "Bag"]))
    there = r"there: digits \(a b c\), garments \(T-shirt/top Shirt Bag\); did you mean 'garments'\? if it is "
    with pytest.raises(ModelNotFound, match=there):
        connect(repository, wrong)


def test_a_model_that_nobody_loaded_names_the_command_that_serves_it(connect):
    repository = Repository(a=config())

    async def models():
        return [{"name": "a", "version": "4", "state": "READY"}, {"name": "new"}]

    repository.models = models
    command = r"'new' is not ready .*: not loaded; if it is published: vitbn repository promote new VERSION$"
    with pytest.raises(ModelNotReady, match=command):
        connect(repository, "new")


def test_the_list_says_of_every_model_whether_and_why_not(connect):
    repository = Repository(b=config("cnn", "0.99"), a=None, d={"parameters": {}}, c=config())
    listed = connect(repository, "c").models()
    assert [each.name for each in listed if each.model] == ["b", "c"]
    assert [each.name for each in listed if not each.model] == ["a", "d"]
    assert listed[0].reason == "UNAVAILABLE, Invalid argument: no such op"
    assert (listed[1].model.family, listed[1].model.test_accuracy, listed[1].model.versions) == ("cnn", 0.99, ("4",))
    assert listed[3].reason.endswith("do not describe a classifier: no 'model_config'")


def test_a_model_that_leaves_while_the_list_is_made_is_listed_as_gone(connect):
    repository = Repository(a=config(), b=config())
    asked = connect(repository, "a")

    async def gone(name):
        raise ModelNotFound(f"no {name} any more")

    repository.config = gone
    assert [(each.model, each.reason) for each in asked.models()] == [(None, f"no {n} any more") for n in "ab"]


def test_a_model_that_takes_something_else_is_refused(connect):
    repository = Repository(a=config())
    repository.image["datatype"] = "FP32"
    with pytest.raises(ModelMismatch, match=r"'a': expected .*UINT8.*, found .*FP32"):
        connect(repository)
    for labels, size in (([], [28, 28]), (["a"], [28, 0]), (["a"], [28]), (None, None)):
        description = {"model": "vit", "labels": labels, "image_size": size, "channels": 1}
        parameters = {"model_config": {"string_value": json.dumps(description)}}
        with pytest.raises(ModelMismatch, match="do not describe a classifier"):
            connect(Repository(a={"parameters": parameters}))
    for parameters in ({}, {"model_config": {"string_value": "[]"}}, {"model_config": {"string_value": "{"}}):
        with pytest.raises(ModelMismatch, match="parameters"):
            connect(Repository(a={"parameters": parameters}))


def test_more_than_a_batch_is_split_in_order(connect):
    repository = Repository(a=config(max_batch_size=3))
    asked = connect(repository)
    logits = asked.logits(IMAGES)
    assert repository.batches == [3, 3, 1]
    np.testing.assert_array_equal(logits, expected_logits(IMAGES))
    assert [p.index for p in asked.classify(IMAGES)] == logits.argmax(axis=1).tolist()
    assert len(np.unique(logits, axis=0)) > 1
    one_by_one = Repository(a=config(max_batch_size=0))
    assert len(connect(one_by_one).classify(IMAGES)) == 7
    assert one_by_one.batches == [1] * 7
    assert (asked.classify(IMAGES[:0]), asked.logits(IMAGES[:0]).shape) == ([], (0, 3))
    for wrong in (IMAGES.astype(np.float32), IMAGES[0]):
        with pytest.raises(InvalidImage, match=r"expected uint8 \(n, 1, 28, 28\), found"):
            asked.classify(wrong)


def test_prediction(connect):
    repository = Repository(a=config())
    repository.infer = answering(np.log(np.array([[0.2, 0.5, 0.3]], dtype=np.float32)))
    (prediction,) = connect(repository).classify(IMAGES[:1])
    assert (prediction.label, prediction.index, prediction.version) == ("b", 1, "4")
    assert prediction.probability == pytest.approx(0.5)
    assert 0 < prediction.latency_ms < 60_000
    assert prediction.probabilities == pytest.approx((0.2, 0.5, 0.3))
    assert [label for label, _ in prediction.top(2)] == ["b", "c"]
    assert len(prediction.top(9)) == 3
    repository.infer = answering(np.array([[3e37, 1e37, 2e37]], np.float32))
    (prediction,) = connect(repository).classify(IMAGES[:1])
    assert prediction.probabilities == pytest.approx((1, 0, 0)), "huge logits are finite probabilities"


def test_a_version_that_is_promoted_meanwhile_has_its_own_temperature_and_the_same_classes(connect):
    repository = Repository(net=config())
    classifier = connect(repository)
    logits = np.log(np.array([[0.2, 0.5, 0.3]], np.float32))
    for version, temperature, expected in (("4", "1.0", 0.5), ("5", "0.5", 0.25 / 0.38), ("4", "9.0", 0.5)):
        repository.configs["net"]["parameters"]["temperature"] = {"string_value": temperature}
        repository.infer = answering(logits, version)
        assert classifier.classify(IMAGES[:1])[0].probability == pytest.approx(expected), version
    assert classifier.model.temperature == 1.0
    repository.configs["net"] = config(labels="bca")
    repository.infer = answering(logits, "6")
    with pytest.raises(ModelMismatch, match=r"images of the classes a, b, c, found \(1, 28, 28\) and b, c, a"):
        classifier.classify(IMAGES[:1])


def test_other_labels_under_the_same_version_are_refused_until_they_are_right(connect, monkeypatch):
    monkeypatch.setattr("clients.classifier.CHECKED_AFTER_NS", 0)
    repository = Repository(net=config())
    repository.infer = answering(np.eye(3, dtype=np.float32)[:1], "4")
    classifier = connect(repository)
    for labels, expected in (("abc", nullcontext()), *2 * (("bca", pytest.raises(ModelMismatch)),)):
        repository.configs["net"] = config(labels=labels)
        with expected:
            assert classifier.classify(IMAGES[:1])[0].label == "a"


def test_another_temperature_under_the_same_version_is_used(connect, monkeypatch):
    monkeypatch.setattr("clients.classifier.CHECKED_AFTER_NS", 0)
    repository = Repository(net=config())
    repository.infer = answering(np.log(np.array([[0.2, 0.5, 0.3]], np.float32)), "4")
    classifier = connect(repository)
    for temperature, expected in (("1.0", 0.5), ("0.5", 0.25 / 0.38)):
        repository.configs["net"]["parameters"]["temperature"] = {"string_value": temperature}
        assert classifier.classify(IMAGES[:1])[0].probability == pytest.approx(expected)


def test_logits_that_are_no_numbers_or_too_few_are_refused(connect):
    repository = Repository(a=config())
    repository.scale = np.float32("nan")
    with pytest.raises(ServerError, match="finite"):
        connect(repository).classify(IMAGES)
    repository.infer = answering(np.zeros((1, 3), dtype=np.float32))
    with pytest.raises(ServerError, match=r"expected finite logits \(3, 3\), found \(1, 3\)"):
        connect(repository).logits(IMAGES)


def test_the_largest_probability_alone_is_the_same() -> None:
    logits = np.random.default_rng(0).normal(0, 30, (500, 10)).astype(np.float32)
    logits[0] = 1e30
    for temperature in (0.7, 1.0, 4.0):
        expected = probabilities(logits, temperature).max(axis=1)
        assert np.abs(top_probabilities(logits, temperature) - expected).max() < 5e-6  # 1.3e-6 measured
    assert np.abs(top_probabilities(logits, 1.01) - expected).max() > 1e-3
