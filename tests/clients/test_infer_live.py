import json
from pathlib import Path

import pytest
from infer_command import run

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
