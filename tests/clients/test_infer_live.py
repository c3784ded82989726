import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from infer_command import run

from clients.errors import ModelNotFound
from clients.options import Options
from clients.web.asking import Triton

pytestmark = pytest.mark.live

DIGIT_PNG = Path(__file__).resolve().parents[2] / "digit.png"
DIGIT = "3"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_text_and_json(live_server, protocol):
    url = {"http": live_server.http_url, "grpc": live_server.grpc_url}[protocol]
    arguments = [DIGIT_PNG, "--url", url, "--protocol", protocol]
    first, *lines = run(*arguments, "--top", 4)[1]
    assert first.startswith(f"{DIGIT_PNG}: {DIGIT} (")
    assert (first[-3:], len(lines), lines[0].split()[0]) == (" %)", 4, DIGIT)
    shares = [float(line.split()[1]) for line in lines]
    assert shares == sorted(shares, reverse=True)
    assert len({len(line) for line in lines}) == 1
    (line,) = run(*arguments, "--json", "--top", 10)[1]
    answer = json.loads(line)
    assert list(answer) == ["file", "shapes", "label", "probability", "top", "model", "version", "latency_ms"]
    assert (answer["file"], answer["label"], answer["model"]) == (str(DIGIT_PNG), DIGIT, "vitbn")
    assert answer["top"][0] == {"label": DIGIT, "probability": answer["probability"]}
    assert sum(entry["probability"] for entry in answer["top"]) == pytest.approx(1)
    assert int(answer["version"]) >= 1
    assert answer["latency_ms"] > 0


def test_models_of_different_labels(trained, repository, tmp_path):
    """`letters` is the network of `vitbn` with other labels."""
    from export.pipeline import ExportOptions, export_checkpoint
    from models.checkpoint import load, save
    from serving.running import running_server

    whole, content = load(trained), DIGIT_PNG.read_bytes()
    letters = tmp_path / "letters.safetensors"
    save(letters, whole.model, replace(whole.config, labels=tuple("abcdefghij")), whole.metrics)
    models = Path(shutil.copytree(repository, tmp_path / "models"))
    export_checkpoint(letters, ExportOptions(repository=models, name="letters", threads=1))
    with running_server(models, ["--disable-auto-complete-config"]) as server:
        code, lines, (error,) = run(DIGIT_PNG, "--url", server.http_url)
        assert (code, lines) == (3, [])
        assert error.endswith("letters (a b c …), vitbn (0 1 2 …)")
        assert run(DIGIT_PNG, "--url", server.http_url, "--model", "letters")[1][0].startswith(f"{DIGIT_PNG}: d (")
        page = Triton(Options(server.http_url))
        found, selected = page.models()
        assert {model.name for model in found} == {"letters", "vitbn"}
        assert page.ask(content, selected).model == selected
        with pytest.raises(ModelNotFound, match="--model"):
            page.ask(content, None)
        assert Triton(Options(server.http_url), "vitbn").ask(content, None).prediction.label == DIGIT
