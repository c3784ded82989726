import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.probing.stored_samples import Expected, Question, encode_request, find_question, judge

IMAGE = np.arange(4, dtype=np.uint8).reshape(1, 4)
LOGITS = np.array([[5, 1, 2]], np.float32)
CONFIG: dict[str, Any] = {
    "max_batch_size": 8,
    "input": [{"name": "image", "dims": [4], "data_type": "TYPE_UINT8"}],
    "output": [{"name": "logits", "dims": [3], "data_type": "TYPE_FP32"}],
}


def version(model: Path, number: int, own: bool = True, tolerance: float | None = 1e-4, **arrays: np.ndarray) -> None:
    folder = model / str(number)
    folder.mkdir(parents=True)
    manifest = {
        "file": "model.onnx",
        "files": {"model.onnx": ""},
        "sample_tolerance": dict.fromkeys(["logits", "more"], tolerance),
        **({"model_config": {"labels": []}} if own else {}),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    arrays = arrays or {"in:image": IMAGE, "out:logits": LOGITS}
    np.savez(folder / "sample.npz", **arrays)


def stored(**answers: dict[str, Any]) -> dict[str, Any]:
    image = base64.b64encode(zlib.compress(IMAGE.tobytes())).decode()
    return CONFIG | {"parameters": {"probe": {"string_value": json.dumps({"image": image, "answers": answers})}}}


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [(True, 1e-4, 0.01), (True, 0.5, 0.5), (True, None, None), (False, 1e-4, 0.1), (False, 0.5, 0.5)],
)
def test_a_version_is_asked_the_sample_beside_it(
    tmp_path: Path, own: bool, given: float | None, expected: float | None
) -> None:
    version(tmp_path, 1, own, given)
    version(tmp_path, 2, **{"in:image": IMAGE + 1, "out:logits": LOGITS})
    question = find_question(stored(), "1", tmp_path)
    assert question.inputs is not None
    assert (question.inputs["image"] == IMAGE).all()
    assert question.expected["logits"].tolerance == expected
    low = CONFIG | {"parameters": {"HINT_BF16": {"string_value": "YES"}}}
    assert find_question(low, "1", tmp_path).expected["logits"].tolerance == (None if own else expected)


def test_a_version_without_a_sample_is_asked_anothers_and_must_answer_in_numbers(tmp_path: Path) -> None:
    version(tmp_path, 1)
    version(tmp_path, 2, **{"in:image": IMAGE + 1, "out:logits": LOGITS})
    version(tmp_path, 3)
    (tmp_path / "3" / "sample.npz").write_bytes(b"PK")
    question = find_question(CONFIG, "3", tmp_path)
    assert question.inputs is not None
    assert (question.inputs["image"] == IMAGE + 1).all(), "the newest other's"
    assert question.expected == {"logits": Expected()}
    assert not question.compares


def test_numbers_that_anothers_sample_does_not_have_are_not_asked_for(tmp_path: Path) -> None:
    nan = LOGITS * np.float32(np.nan)
    version(tmp_path, 1, **{"in:image": IMAGE, "out:logits": LOGITS, "out:more": nan})
    config = CONFIG | {"output": [*CONFIG["output"], {"name": "more", "dims": [3], "data_type": "TYPE_FP32"}]}
    assert find_question(config, "2", tmp_path).expected == {"logits": Expected()}


def test_far_from_the_files_the_configuration_has_the_answers(tmp_path: Path) -> None:
    other = base64.b64encode(zlib.compress((IMAGE + 1).tobytes())).decode()
    answer = {"logits": [5, 1, 2], "tolerance": 0.01}
    config = stored(**{"1": answer, "2": {**answer, "image": other}})
    question = [find_question(config, number, None) for number in "123"]
    assert [each.inputs["image"][0, 0] for each in question if each.inputs] == [0, 1, 0]
    assert [each.compares for each in question] == [True, True, False]
    assert question[2].expected == {"logits": Expected()}
    assert find_question(CONFIG, "1", tmp_path) == Question(None, {})


@pytest.mark.parametrize(
    ("expected", "found", "state"),
    [
        (LOGITS, [5, 1, 2], "right"),
        (LOGITS, [5.2, 1, 2], "wrong"),
        (LOGITS, [5, np.nan, 2], "wrong"),
        (LOGITS, [5, np.inf, 2], "wrong"),
        ([[np.nan, 1, np.inf]], [np.nan, 1, np.inf], "right"),
        ([[np.nan, 1, np.inf]], [1, 1, np.inf], "wrong"),
        ([[np.nan, 1, np.inf]], [np.nan, 1, -np.inf], "wrong"),
        (None, [5, 1, 2], "not compared"),
        (None, [np.nan, 1, 2], "wrong"),
    ],
)
def test_only_numbers_that_the_sample_lacks_too_may_be_missing(
    expected: list[list[float]] | None, found: list[float], state: str
) -> None:
    values = None if expected is None else np.array(expected, np.float32)
    judgement = judge({"logits": Expected(values, 0.1)}, {"logits": np.array(found, np.float32)})
    assert judgement[0] == state
    assert bool(judgement[2]) == (state != "right")


def test_below_float32_only_the_class_counts() -> None:
    values = np.array([[5, 1, 2], [1, 5, 2]], np.float32)
    expected = {"logits": Expected(values, None)}
    assert judge(expected, {"logits": values.ravel() * np.float32(3)})[0] == "right"
    assert judge(expected, {"logits": values[::-1].ravel()})[0] == "wrong"


def test_another_count_of_numbers_is_no_answer() -> None:
    with pytest.raises(ValueError, match="2 numbers in logits for 3"):
        judge({"logits": Expected(LOGITS, 0.1)}, {"logits": np.zeros(2, np.float32)})


def test_a_sample_has_no_more_rows_than_the_server_takes_and_a_number_a_row_has_an_axis(tmp_path: Path) -> None:
    rows = {
        "in:image": np.zeros((9, 4), np.uint8),
        "in:length": np.arange(9),
        "out:logits": np.zeros((9, 3), np.float32),
    }
    version(tmp_path, 1, **rows)
    config = CONFIG | {"input": [*CONFIG["input"], {"name": "length", "dims": [1], "data_type": "TYPE_INT64"}]}
    question = find_question(config, "1", tmp_path)
    header, content = encode_request(config, question.inputs)
    assert [each["shape"] for each in json.loads(header)["inputs"]] == [[8, 4], [8, 1]]
    assert len(content) == 8 * 4 + 8 * 8
    assert question.expected["logits"].values is not None
    assert len(question.expected["logits"].values) == 8
