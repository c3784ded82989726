import csv
import json

import numpy as np
import pytest
from idx_files import idx_bytes
from infer_command import ask
from PIL import Image
from stand_in import LABELS, StandIn, expected_logits

from clients.images.mnist_layout import drawing_inputs
from clients.prediction import Answer, predictions


@pytest.fixture
def server():
    with StandIn(max_batch_size=64).serving("http") as stand_in:
        yield stand_in


@pytest.fixture
def row(tmp_path, digit):
    sheet = np.full((160, 460), 245, dtype=np.uint8)
    large = np.asarray(Image.fromarray(digit).resize((112, 112), Image.Resampling.BICUBIC))
    for number, width in enumerate((112, 90, 70, 100)):
        one = np.asarray(Image.fromarray(large).resize((width, 112), Image.Resampling.BICUBIC))
        left = 10 + 110 * number
        sheet[20 : 20 + 112, left : left + width] -= (one * 0.9).astype(np.uint8)
    Image.fromarray(sheet).save(tmp_path / "row.png")
    return tmp_path / "row.png"


def expected(row, temperature=1.0):
    inputs, shapes, _ = drawing_inputs(Image.open(row), split=True)
    assert (len(inputs), shapes) == (4, 4)
    return predictions(Answer(expected_logits(inputs), "1", 0.0), LABELS, temperature)


def test_each_shape_has_its_own_answer(server, row):
    code, lines, errors = ask(server, row)
    assert (code, len(lines), server.batches) == (0, 1, [1])
    assert errors == [f"Note: {row}: 4 separate shapes, read as one digit; --split reads each"]
    answers = expected(row)
    code, lines, errors = ask(server, row, "--split")
    assert (code, errors) == (0, [])
    assert lines == [
        *(
            f"{row}, shape {number} of 4: {each.label} ({100 * each.probability:.1f} %)"
            for number, each in enumerate(answers, 1)
        ),
        f"{row}: {''.join(each.label for each in answers)}",
    ]


def test_json_and_csv_name_the_shape(server, row):
    answers = expected(row)
    objects = [json.loads(line) for line in ask(server, row, "--split", "--json")[1]]
    assert [(each["shape"], each["shapes"], each["label"]) for each in objects] == [
        (number, 4, answer.label) for number, answer in enumerate(answers, 1)
    ]
    rows = list(csv.DictReader(ask(server, row, "--split", "--csv")[1]))
    assert list(rows[0]) == ["file", "shape", "shapes", "label", "probability", "model", "version", "latency_ms"]
    assert [each["label"] for each in rows] == [answer.label for answer in answers]
    assert {each["file"] for each in rows} == {str(row)}


def test_answers_below_the_limit_are_rejected(server, row):
    answers = expected(row)
    limit = sorted(each.probability for each in answers)[2]
    below = [each.probability < limit for each in answers]
    assert 0 < sum(below) < 4
    code, lines, errors = ask(server, row, "--split", "--reject-below", limit)
    assert (code, errors) == (4, [])
    for line, answer, rejected in zip(lines[:4], answers, below, strict=True):
        share = f"{100 * answer.probability:.1f} %"
        verdict = f"rejected ({answer.label} at {share})" if rejected else f"{answer.label} ({share})"
        assert line.endswith(f": {verdict}")
    read = "".join("?" if rejected else answer.label for answer, rejected in zip(answers, below, strict=True))
    assert lines[4] == f"{row}: {read}"
    objects = [json.loads(line) for line in ask(server, row, "--split", "--json", "--reject-below", limit)[1]]
    assert [each["rejected"] for each in objects] == below
    rows = csv.DictReader(ask(server, row, "--split", "--csv", "--reject-below", limit)[1])
    assert [each["rejected"] for each in rows] == [str(rejected).lower() for rejected in below]
    assert ask(server, row, "--split", "--reject-below", 1e-9)[0] == 0
    code, _, errors = ask(server, row, "missing.png", "--split", "--reject-below", 1)
    assert (code, len(errors)) == (1, 1), "a failure outranks a rejection"


def test_the_model_itself_rejects_what_is_none_of_its_labels(server, row):
    evidence = sorted(each.evidence for each in expected(row))
    server.parameters["evidence_limit"] = str((evidence[1] + evidence[2]) / 2)
    below = [each.evidence < evidence[2] for each in expected(row)]
    code, lines, _ = ask(server, row, "--split", "--reject-below", "auto")
    assert (code, [": rejected (" in line for line in lines[:4]]) == (4, below)
    objects = [json.loads(line) for line in ask(server, row, "--split", "--json", "--reject-below", "auto")[1]]
    assert [each["rejected"] for each in objects] == below
    server.parameters["evidence_limit"] = str(evidence[0])
    assert ask(server, row, "--split", "--reject-below", "auto")[0] == 0


def test_a_model_without_a_threshold_cannot_reject_by_it(server, row):
    code, lines, errors = ask(server, row, "--reject-below", "auto")
    assert (code, lines) == (2, [])
    assert errors[-1].startswith("Error: --reject-below auto: expected a model with a fitted threshold, found ")
    assert errors[-1].endswith(
        "; train with --hold-out N, which fits it, and export again, or give a probability, such as 0.5"
    )
    server.parameters["evidence_limit"] = "nan"
    assert ask(server, row)[0] == 3  # no description of a classifier


def test_probabilities_are_of_the_temperature(server, row):
    server.parameters["temperature"] = "2.5"
    shares = [json.loads(line)["probability"] for line in ask(server, row, "--split", "--json")[1]]
    assert shares == pytest.approx([each.probability for each in expected(row, 2.5)])
    assert shares != pytest.approx([each.probability for each in expected(row)])


@pytest.mark.parametrize("temperature", ["0", "-1", "nan", "inf", "warm"])
def test_a_temperature_that_cannot_be(server, row, temperature):
    server.parameters["temperature"] = temperature
    code, lines, errors = ask(server, row, "--model", "net")
    assert (code, lines, len(errors)) == (3, [], 1)
    assert "do not describe a classifier" in errors[0]


def test_the_accuracy_is_of_the_answers_that_are_not_rejected(server, tmp_path):
    images = np.random.default_rng(0).integers(50, 256, (30, 28, 28), dtype=np.uint8)
    answers = predictions(Answer(expected_logits(images[:, None]), "1", 0.0), LABELS, 1.0)
    (tmp_path / "images").write_bytes(idx_bytes(images))
    (tmp_path / "labels").write_bytes(idx_bytes(np.ones(30, np.uint8)))
    kept = [each for each in answers if each.probability >= 0.9]
    correct = sum(each.index == 1 for each in kept)
    labels = ["--labels", tmp_path / "labels"]
    code, lines, _ = ask(server, tmp_path / "images", *labels, "--reject-below", 0.9)
    assert code == 4
    assert lines[-1] == (
        f"accuracy: {100 * correct / len(kept):.2f} % ({correct} of {len(kept)}), "
        f"rejected: {100 * (30 - len(kept)) / 30:.2f} % ({30 - len(kept)} of 30)"
    )


def test_labels_outside_the_classes(server, tmp_path):
    (tmp_path / "images").write_bytes(idx_bytes(np.full((3, 28, 28), 99, np.uint8)))
    (tmp_path / "labels").write_bytes(idx_bytes(np.array([0, 2, 3], np.uint8)))
    code, lines, errors = ask(server, tmp_path / "images", "--labels", tmp_path / "labels")
    assert (code, lines) == (2, [])
    assert errors[-1].startswith(f"Error: --labels {tmp_path}/labels: expected labels from 0 to 2, as model 'net' has")
    assert errors[-1].endswith("3 classes, found 3 in item 2")
