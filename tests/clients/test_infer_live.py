import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from clients.errors import ModelNotFound
from clients.infer import infer
from clients.options import Options
from clients.web.asking import Triton

pytestmark = pytest.mark.live

DIGIT_PNG = str(Path(__file__).resolve().parents[2] / "digit.png")
DIGIT = "3"
PROTOCOLS = ["http", "grpc"]


def url_of(server, protocol):
    return {"http": server.http_url, "grpc": server.grpc_url}[protocol]


def run(server, protocol, *arguments):
    return ask(server, protocol, DIGIT_PNG, *arguments)


def ask(server, protocol, *arguments):
    command = ["--url", url_of(server, protocol), "--protocol", protocol, "--model", "vitbn", *arguments]
    return CliRunner().invoke(infer, command)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_text_and_json(live_server, protocol):
    first, *lines = run(live_server, protocol, "--top", "4").stdout.splitlines()
    assert first.startswith(f"{DIGIT_PNG}: {DIGIT} (")
    assert (first[-3:], len(lines), lines[0].split()[0]) == (" %)", 4, DIGIT)
    shares = [float(line.split()[1]) for line in lines]
    assert shares == sorted(shares, reverse=True)
    assert len({len(line) for line in lines}) == 1
    answer = json.loads(run(live_server, protocol, "--json", "--top", "10").stdout)
    assert list(answer) == ["file", "shapes", "label", "probability", "top", "model", "version", "latency_ms"]
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
    assert "vitbn" in result.stderr


@pytest.fixture(scope="module")
def two_models(trained, repository, tmp_path_factory):
    """A server of `vitbn` and of `letters`, the same network with other labels."""
    from export.pipeline import ExportOptions, export_checkpoint
    from models.checkpoint import load, save
    from serving.running import running_server

    folder = tmp_path_factory.mktemp("two")
    whole = load(trained)
    save(folder / "letters.safetensors", whole.model, replace(whole.config, labels=tuple("abcdefghij")), whole.metrics)
    shutil.copytree(repository, folder / "repository")
    options = ExportOptions(repository=folder / "repository", name="letters", threads=1)
    export_checkpoint(folder / "letters.safetensors", options)
    with running_server(folder / "repository", ["--disable-auto-complete-config"]) as server:
        yield server


def test_models_of_different_labels_must_be_named(two_models):
    unnamed = CliRunner().invoke(infer, ["--url", two_models.http_url, DIGIT_PNG])
    assert (unnamed.exit_code, unnamed.stdout) == (3, "")
    (line,) = unnamed.stderr.splitlines()
    assert line.endswith("letters (a b c …), vitbn (0 1 2 …)")
    assert "--model" in line
    named = CliRunner().invoke(infer, ["--url", two_models.http_url, "--model", "letters", DIGIT_PNG])
    assert named.stdout.startswith(f"{DIGIT_PNG}: d (")


def test_the_page_of_models_of_different_labels(two_models):
    page = Triton(Options(two_models.http_url))
    models, selected = page.models()
    assert {model.name for model in models} == {"letters", "vitbn"}
    assert page.ask(Path(DIGIT_PNG).read_bytes(), selected).model == selected
    with pytest.raises(ModelNotFound, match="--model"):
        page.ask(Path(DIGIT_PNG).read_bytes(), None)
    assert Triton(Options(two_models.http_url), "vitbn").ask(Path(DIGIT_PNG).read_bytes(), None).prediction.label == "3"


@pytest.fixture(scope="module")
def idx_files(tmp_path_factory):
    from models.data import load_digits

    digits = load_digits()
    images, labels = digits.test_images[:200], digits.test_labels[:200]
    folder = tmp_path_factory.mktemp("idx")
    (folder / "images").write_bytes(struct.pack(">IIII", 0x803, 200, 28, 28) + images.tobytes())
    (folder / "labels").write_bytes(struct.pack(">II", 0x801, 200) + bytes(labels.tolist()))
    return str(folder / "images"), str(folder / "labels"), [str(label) for label in labels]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("more", [[], ["--batch-size", "64", "--concurrency", "3"]])
def test_labels(live_server, protocol, idx_files, more):
    images, labels, truths = idx_files
    *lines, last = ask(live_server, protocol, images, "--labels", labels, *more).stdout.splitlines()
    found = [line.split(": ")[1].split()[0] for line in lines]
    correct = sum(one == other for one, other in zip(found, truths, strict=True))
    assert last == f"accuracy: {correct / 2:.2f} % ({correct} of 200)"
    assert correct > 180
