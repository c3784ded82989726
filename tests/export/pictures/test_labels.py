"""Files that name a network's classes: lines, or the JSON that lies beside a network."""

import json
from pathlib import Path

import pytest

from export.errors import PublishError
from export.pictures.labels_file import read_labels

NAMES = ["cat", "tench, Tinca tinca", "dog"]
NUMBERED = {"2": "dog", "0": "cat", "1": "tench, Tinca tinca"}


@pytest.mark.parametrize(
    "content",
    [
        "cat\ntench, Tinca tinca\ndog\n\n",
        "\ufeffcat\r\ntench, Tinca tinca \r\ndog",
        json.dumps(NAMES),
        json.dumps({"architectures": ["ViT"], "id2label": NUMBERED, "label2id": {}}, indent=2),
        json.dumps({"architecture": "vit", "label_names": NAMES, "pretrained_cfg": {}}),
    ],
)
def test_names_in_the_order_of_the_scores(content: str, tmp_path: Path) -> None:
    (tmp_path / "labels").write_text(content)
    assert read_labels(tmp_path / "labels") == NAMES


@pytest.mark.parametrize(
    "content", ["7\n8\n", "0 cat\n1 dog\n", "1: cat\n2: dog\n", "3 series\n1 series\n", "2 up\n1\n"]
)
def test_lines_that_do_not_number_the_classes_otherwise_are_names(content: str, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text(content)
    assert read_labels(tmp_path / "labels.txt") == content.split("\n")[:-1]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("2 cat\n0 dog\n1 bird\n", "expected the classes in the order of their numbers, found line 1 '2 cat'"),
        ("1: cat\n3: dog\n2: bird\n", "expected the classes in the order of their numbers, found line 2 '3: dog'"),
        ("cat\n\ndog\n", "found line 2 empty"),
        ("\ncat\n", "found line 1 empty"),
        ('{"id2label": {"0": "cat", "2": "dog"}}', "found other JSON"),
        ('{\n"0": "cat",\n"1": "dog"\n}', "found other JSON"),
        ("[1, 2]", "found other JSON"),
        ("[]", "found other JSON"),
        (b"\xff\xfec\x00", "expected a class a line, found "),
    ],
)
def test_what_names_no_class_for_each_score_is_refused(content: str | bytes, found: str, tmp_path: Path) -> None:
    (tmp_path / "labels").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PublishError, match=found):
        read_labels(tmp_path / "labels")
