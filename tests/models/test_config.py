import dataclasses
import json
import math
import re

import numpy as np
import pytest

from models.networks.config import MODEL_NAMES, ConfigError, ModelConfig

UNUSUAL = ModelConfig(
    model="vitbnffn",
    image_size=(8, 12),
    patch_size=(4, 3),
    channels=2,
    num_classes=3,
    dim=16,
    depth=2,
    heads=1,
    dim_head=8,
    mlp_dim=24,
    pool="mean",
    dropout=0.1,
    emb_dropout=0.2,
    pos_emb="pe1d",
    bn_features="one",
    qkv_bias=True,
    standardise=True,
    labels=("null", "eins", "zwölf"),
)


@pytest.mark.parametrize("config", [ModelConfig(), UNUSUAL, ModelConfig(model="cnn")])
def test_json_round_trip(config):
    assert ModelConfig.from_json(config.to_json()) == config


def test_geometry():
    assert (UNUSUAL.num_patches, UNUSUAL.patch_dim, UNUSUAL.input_shape) == (8, 24, (2, 8, 12))
    assert ModelConfig(model="cnn", image_size=(30, 30)).image_size == (30, 30), "a CNN has no patches"
    assert ModelConfig(preprocessing="photo", channels=3).input_shape == (3, 28, 28)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("model", "resnet", f"one of {', '.join(MODEL_NAMES)}"),
        ("pool", "max", "one of cls, mean"),
        ("pos_emb", "rope", "one of learn, pe1d"),
        ("bn_features", "two", "one of dim, one"),
        ("preprocessing", "none", "one of ink, photo"),
        *((field, 0, "an integer of at least 1") for field in ("channels", "num_classes", "dim", "depth")),
        ("depth", True, "an integer of at least 1"),
        ("depth", 501, "at most 500"),
        *((field, 1.5, "an integer of at least 1") for field in ("heads", "dim_head", "mlp_dim")),
        ("image_size", (28, 0), "two integers of at least 1, height and width"),
        ("patch_size", (7,), "two integers of at least 1, height and width"),
        ("patch_size", (7, 5), "a divisor of image_size (28, 28)"),
        ("class_attention", (True, 1), "two integers of at least 1, heads and their width"),
        ("class_attention", 5, "two integers of at least 1, heads and their width"),
        ("dropout", 1.0, "a number in [0, 1)"),
        ("emb_dropout", -0.1, "a number in [0, 1)"),
        ("image_size", 28, "two integers of at least 1, height and width"),
        ("dropout", "a", "a number in [0, 1)"),
        ("qkv_bias", "false", "true or false"),
        ("labels", None, "a tuple of names"),
    ],
)
def test_refusal_names_field_expected_and_found(field, value, expected):
    for make in (lambda: ModelConfig(**{field: value}), lambda: ModelConfig.from_json(json.dumps({field: value}))):
        with pytest.raises(ConfigError, match=f"^{re.escape(f'{field}: expected {expected}, found {value!r}')}$"):
            make()


@pytest.mark.parametrize("label", ["", " ", "0\n1", "\x1b[2J", "a\u202eb", "\ud800", 7, None])
def test_labels_are_printable_names(label):
    with pytest.raises(ConfigError) as refused:
        ModelConfig(num_classes=2, labels=("a", label))
    assert str(refused.value) == f"labels: expected printable names that are not empty, found {label!r}"


@pytest.mark.parametrize("label", ["\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "👩\u200d💻"])
def test_labels_may_have_joiners(label):
    assert ModelConfig(num_classes=2, labels=("a", label)).labels[1] == label


JOINING = ModelConfig(class_attention=(3, 5))


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (ModelConfig(), {"dim": 15, "pos_emb": "pe1d"}, "dim: expected an even number for pos_emb pe1d, found 15"),
        (ModelConfig(), {"num_classes": 3, "labels": ("a", "b")}, "labels: expected 3 names, found 2"),
        (
            ModelConfig(),
            {"num_classes": 3, "labels": ("b", "a", "b")},
            "labels: expected a different name for each class, found 'b'",
        ),
        (
            ModelConfig(),
            {"preprocessing": "photo", "channels": 2},
            "channels: expected 1, grey, or 3, RGB, for photos, found 2",
        ),
        *(
            (JOINING, change, "class_attention: expected ")
            for change in ({"class_attention": (0, 4)}, {"pool": "mean"}, {"model": "cnn"}, {"model": "vit-dtn"})
        ),
    ],
)
def test_fields_that_do_not_fit_together(config, changes, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        dataclasses.replace(config, **changes)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "null", '{"colour": 1}', '{"late_cls": null}'],
)
def test_json_that_is_no_config(text):
    with pytest.raises(
        ConfigError, match="model config: expected a JSON object of ModelConfig fields, found "
    ) as refused:
        ModelConfig.from_json(text)
    assert "attribute" not in str(refused.value)


@pytest.mark.parametrize("field", [each.name for each in dataclasses.fields(ModelConfig)])
@pytest.mark.parametrize(
    "value",
    [
        np.int64(28),
        np.float32(0.5),
        np.array(["vit", "cls"]),
        np.eye(2),
        (np.int64(7), np.int64(7)),
        math.nan,
        object,
    ],
    ids=repr,
)
def test_no_field_takes_numbers_of_numpy_or_none_at_all(field, value):
    with pytest.raises(ConfigError) as refused:
        ModelConfig(**{field: value})
    message = str(refused.value)
    assert message.startswith(f"{field}: expected ")
    assert "\n" not in message
    foreign = isinstance(value, np.generic | np.ndarray | tuple)
    assert ("of numpy." in message) == foreign or field == "labels"
