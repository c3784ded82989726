"""`vitbn repository publish --pictures`, and every client on what it publishes, on the real server."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commands import failure, measured, ok, told, told_lines
from numpy.typing import NDArray
from onnx import TensorProto
from picture_networks import CLASSES, SIDE, answers, network
from PIL import Image
from sklearn.datasets import load_sample_image

from benchmarks.accuracy import accuracy
from benchmarks.measure.published_accuracy import calibration
from clients.bulk.app import bulk
from clients.classifier import Classifier
from clients.infer import infer as infer_command
from clients.options import Options
from clients.probe import probe_server
from clients.web.triton_requests import Triton
from export.pictures.processor import Processor
from export.pictures.processor_file import read_processor
from export.publishing.publish import read_config
from export.repository import repository
from serving.local_server import running_server

PHOTO = Image.fromarray(load_sample_image("flower.jpg"))
PROCESSOR = {
    **{"do_resize": True, "size": {"shortest_edge": 20}, "resample": 2, "do_center_crop": True},
    **{"crop_size": {"height": SIDE, "width": SIDE}, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]},
}
LABELS = ["trouser", "bag", "coat", "dress", "boot"]

infer = partial(told_lines, infer_command)


def publish(run: Callable[..., Any], folder: Path, file: Path, *options: object) -> Any:
    return run(repository, "publish", file, "--repository", folder, "--server", "127.0.0.1:1", *options)


def written(folder: Path) -> Processor:
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    (folder / "labels.txt").write_text("\n".join(LABELS) + "\n")
    return read_processor(folder / "preprocessor_config.json", None)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of three models: `net` has labels, version 2 of `warm` a temperature, `floats` no --pictures."""
    folder = tmp_path_factory.mktemp("pictures")
    written(folder)
    file = network(folder / "net.onnx")
    processor, labels = folder / "preprocessor_config.json", folder / "labels.txt"
    options = ("--pictures", "--processor", processor, "--labels", labels)
    done = publish(ok, folder / "models", file, *options)
    assert "The processor's numbers are in its first layer\nProved float64: " in done.output
    for more in ((), ("--temperature", "2")):
        publish(ok, folder / "models", file, *options, "--name", "warm", *more)
    publish(ok, folder / "models", file, "--name", "floats")
    PHOTO.save(folder / "photo.jpg")
    PHOTO.resize((3200, 2135)).save(folder / "large.jpg")
    return folder


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[str]:
    with running_server(place / "models", []) as running:
        yield running.http_url


def expected(place: Path, name: str) -> NDArray[np.float64]:
    """Probabilities of the original, whose processor is written out here: torchvision's order, then numpy."""
    image = Image.open(place / name).convert("RGB")
    short = int(20 * max(image.size) / min(image.size))
    size = (short, 20) if image.width >= image.height else (20, short)
    image = image.resize((size[0], image.height), Image.Resampling.BILINEAR).resize(size, Image.Resampling.BILINEAR)
    left, top = (size[0] - SIDE) // 2, (size[1] - SIDE) // 2
    levels = np.asarray(image.crop((left, top, left + SIDE, top + SIDE)), np.float64) / 255
    mean, std = (np.array(PROCESSOR[f"image_{name}"]) for name in ("mean", "std"))
    floats = ((levels - mean) / std).transpose(2, 0, 1)[np.newaxis].astype(np.float32)
    scores = answers(place / "net.onnx", "scores", pixels=floats)[0].astype(np.float64)
    powers = np.exp(scores - scores.max())
    return np.asarray(powers / powers.sum())


@pytest.mark.live
@pytest.mark.parametrize(("name", "piped"), [("photo.jpg", False), ("large.jpg", False), ("large.jpg", True)])
def test_infer_answers_as_the_original_with_its_processor(name: str, piped: bool, place: Path, server: str) -> None:
    asked, given = ("-", (place / name).read_bytes()) if piped else (place / name, b"")
    code, lines, errors = infer(asked, "--url", server, "--model", "net", "--json", "--top", CLASSES, given=given)
    assert (code, errors) == (0, [])
    (answer,) = map(json.loads, lines)
    found = {each["label"]: each["probability"] for each in answer["top"]}
    assert [found[label] for label in LABELS] == pytest.approx(expected(place, name).tolist(), abs=1e-5)


@pytest.mark.live
def test_page_probe_bulk_and_rejection_go_the_same_road(place: Path, server: str) -> None:
    wanted = expected(place, "large.jpg")
    page = Triton(Options(server), "net")
    answer = page.ask((place / "large.jpg").read_bytes(), "net")
    page.close()
    assert answer.prediction.probabilities == pytest.approx(wanted.tolist(), abs=1e-5)
    probed = probe_server(server, ["net"])
    assert [version.state for version in probed.versions] == ["right"]
    model, output = place / "models" / "net", place / "answers"
    ok(bulk, place / "large.jpg", "--model", model, "--output", output)
    import pyarrow.parquet as pq

    (row,) = pq.read_table(output).to_pylist()
    assert (row["label"], row["probability"]) == (LABELS[wanted.argmax()], pytest.approx(wanted.max(), abs=1e-5))
    limit = float(wanted.max()) + 0.01
    code, lines, _ = infer(place / "large.jpg", "--url", server, "--model", "net", "--reject-below", min(limit, 1))
    assert code == 4
    assert "rejected" in lines[0]
    code, _, errors = infer(place / "large.jpg", "--url", server, "--model", "net", "--reject-below", "auto")
    assert (code, errors[-1].endswith("; one from elsewhere takes a probability, such as 0.5")) == (2, True)


@pytest.mark.live
def test_a_network_that_reads_floats_is_refused_in_a_line_that_names_the_command(place: Path, server: str) -> None:
    code, _, errors = infer(place / "photo.jpg", "--url", server, "--model", "floats")
    assert code == 3
    assert len(errors) == 1
    assert "vitbn repository publish FILE.onnx --pictures" in errors[0]


@pytest.mark.live
def test_a_second_version_has_a_temperature(place: Path, server: str) -> None:
    wanted = expected(place, "photo.jpg") ** 0.5
    with Classifier(Options(server), "warm") as classifier:
        assert classifier.model.temperature == 2
    code, lines, _ = infer(place / "photo.jpg", "--url", server, "--model", "warm", "--json", "--top", CLASSES)
    assert code == 0
    found = {each["label"]: each["probability"] for each in json.loads(lines[0])["top"]}
    assert [found[label] for label in LABELS] == pytest.approx((wanted / wanted.sum()).tolist(), abs=1e-5)


@pytest.mark.slow
def test_list_verify_and_show_know_it(place: Path) -> None:
    models = ("--repository", place / "models")
    listed = ok(repository, "list", *models, "--server", "127.0.0.1:1").output
    (row,) = [line for line in listed.splitlines() if line.startswith("net ")]
    assert "fold-affine" in row
    ok(repository, "verify", *models)
    shown = json.loads(ok(repository, "show", "net", *models).output)
    assert shown["model_config"]["labels"] == LABELS
    assert shown["source"]["file"] == "net.onnx"
    assert [proof["precision"] for proof in shown["proofs"]] == ["float64", "float32"]


@pytest.fixture(scope="module")
def labelled(place: Path) -> Path:
    """Parts of the photo, 24 for each class; half of them lie in the class that the original sees."""
    rng, folder = np.random.default_rng(0), place / "labelled"
    for number in range(48):
        left, top = rng.integers(0, 340), rng.integers(0, 200)
        PHOTO.crop((left, top, left + 300, top + 220)).save(place / "part.png")
        label = LABELS[int(expected(place, "part.png").argmax())] if number % 2 else LABELS[number % 5]
        (folder / label).mkdir(parents=True, exist_ok=True)
        (place / "part.png").rename(folder / label / f"{number}.png")
    return folder


@pytest.mark.slow
def test_accuracy_and_temperature_of_a_folder(place: Path, labelled: Path) -> None:
    paths = sorted(labelled.rglob("*.png"))
    right = [LABELS[expected(place, str(path.relative_to(place))).argmax()] == path.parent.name for path in paths]
    published = ("--published", place / "models" / "net", "--dataset", labelled)
    printed, result = measured(accuracy, place / "accuracy.json", *published)
    assert f"net: {100 * np.mean(right):.2f} % of 48 pictures right (all of the folder, also what " in printed
    (row,) = result["rows"]
    assert row["accuracy"] == pytest.approx(np.mean(right))
    assert row["temperature"] > 1  # half of the answers of a certain network are wrong


def test_a_temperature_is_judged_by_other_pictures() -> None:
    """Scores three times too large."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(4000, 5))
    powers = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    labels = (powers.cumsum(1) > rng.random((4000, 1))).argmax(1)
    found = calibration((3 * scores).astype(np.float32), labels)
    assert found["temperature"] == pytest.approx(3, rel=0.1)
    assert found["calibration_error"] < 0.05 < 0.15 < found["calibration_error_before"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], "expected --dataset, a name or a folder of pictures by class, with --published"),
        (
            ["--dataset", "nowhere"],
            "nowhere: expected a dataset's name or a folder of pictures by class, found no such",
        ),
        (["--dataset", "digits"], "digits: expected classes of net (trouser, bag, coat …), found '0'"),
        (["--dataset", "digits", "--model", "vit"], "expected --published alone, found --model"),
    ],
)
def test_accuracy_of_what_does_not_fit_is_refused(options: list[str], found: str, place: Path) -> None:
    line, code = failure(accuracy, "--published", place / "models" / "net", *options)
    assert (code in (1, 2), found in line) == (True, True)


@pytest.mark.slow
def test_another_set_of_classes_wants_another_name(place: Path) -> None:
    file = network(place / "others.onnx", classes=7)
    line, code = publish(failure, place / "models", file, "--pictures", "--mean", "0", "--std", "1", "--name", "net")
    assert (code, line.endswith("publish it under another --name")) == (1, True)


@pytest.mark.slow
def test_large_networks_get_smaller_requests(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.pictures.options.MOST_MACS", 100_000.0)
    publish(ok, place / "models", place / "net.onnx", "--pictures", "--mean", "0", "--std", "1", "--name", "small")
    assert read_config(place / "models" / "small").max_batch_size < 64


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--mean", "0.5", "--std", "0.5"], "expected --pictures with --mean, found --mean alone"),
        (["--pictures", "--mean", "0.5"], "expected --mean and --std, found one of them"),
        (["--pictures", "--mean", "0.5,0.5", "--std", "1"], "expected one number or three, found '0.5,0.5'"),
        (["--pictures", "--mean", "123.6", "--std", "58"], "expected numbers from 0 to 1, of levels from 0 to 1"),
        (["--pictures", "--mean", "nan", "--std", "1"], "expected numbers from 0 to 1"),
        (["--pictures", "--mean", "a", "--std", "1"], "expected numbers such as 0.5"),
        (["--pictures", "--mean", "0", "--std", "0"], "expected numbers above 0, found '0'"),
        (["--pictures", "--processor", "PROCESSOR", "--crop", "0.9"], "expected --processor or --crop, found both"),
        (["--pictures"], "expected --processor, or --mean and --std: the network reads floats (0 and 1 where"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: list[str], found: str, tmp_path: Path) -> None:
    written(tmp_path)
    given = [str(tmp_path / "preprocessor_config.json") if each == "PROCESSOR" else each for each in options]
    line, code = publish(failure, tmp_path / "models", network(tmp_path / "net.onnx"), *given)
    assert (code in (1, 2), found in line) == (True, True)
    assert not (tmp_path / "models" / "net").exists()


def test_a_network_of_bytes_has_no_processor(tmp_path: Path) -> None:
    file = network(tmp_path / "net.onnx", dtype=TensorProto.UINT8)
    line, code = publish(failure, tmp_path / "models", file, "--pictures", "--mean", "0.5", "--std", "0.5")
    assert (code, "expected no --mean: the network reads bytes, found (0.5,)" in line) == (1, True)
    printed = publish(ok, tmp_path / "models", file, "--pictures").output
    assert "The network reads bytes, no processor's numbers\nProved float64: " in printed


def test_a_damaged_file_is_refused_in_a_line(tmp_path: Path) -> None:
    model = onnx.load(network(tmp_path / "net.onnx"))
    model.graph.node[1].input[1] = "nothing"
    onnx.save(model, tmp_path / "net.onnx")
    code, printed = publish(told, tmp_path / "models", tmp_path / "net.onnx", "--pictures", "--mean", "0", "--std", "1")
    assert (code, len(printed.splitlines())) == (1, 1)
