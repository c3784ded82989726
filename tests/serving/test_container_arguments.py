"""The server of deploy/container and deploy/kubernetes, by their own arguments: it answers, and takes no load."""

import base64
import json
from pathlib import Path

import pytest
import yaml
from published_models import published

from benchmarks.drills import hostile_requests
from clients.probing.server_probe import probe_server
from serving.local_server import running_server

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "container/compose.yaml").read_text())["services"]["server"]
(POD,) = [
    each["spec"]["template"]["spec"]
    for each in yaml.safe_load_all((DEPLOY / "kubernetes/deployment.yaml").read_text())
    if each["kind"] == "Deployment"
]
SERVERS = {"compose": COMPOSE["command"][1:], "kubernetes": POD["containers"][0]["args"]}


def test_both_run_the_same_server() -> None:
    assert POD["containers"][0]["image"] == COMPOSE["image"]
    assert SERVERS["kubernetes"] == SERVERS["compose"]


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["none", "explicit"])
def test_it_answers_and_runs_no_stranger_s_code(tmp_path: Path, mode: str) -> None:
    """In explicit mode the same call runs the code: the test would see it."""
    published(tmp_path / "models", versions=1)
    ran = tmp_path / "ran"
    code = base64.b64encode(f"open({str(ran)!r}, 'w')".encode()).decode()
    parameters = {"config": json.dumps({"backend": "python", "max_batch_size": 0}), "file:1/model.py": code}
    body = json.dumps({"parameters": parameters}).encode()
    arguments = [each for each in SERVERS["compose"] if not each.startswith("--model-repository")]
    assert "--model-control-mode=none" in arguments
    arguments = [each.replace("mode=none", f"mode={mode}") for each in arguments]
    loads = ["--load-model=*"] if mode == "explicit" else []
    # Without a key, as in a container.
    with running_server(tmp_path / "models", [*arguments, *loads, "--open-control"]) as server:
        assert probe_server(server.http_url, timeout_s=5).ok
        _, answer = hostile_requests.send(server.http_url, "POST", "/v2/repository/models/evil/load", body)
    assert (b"load / unload is not allowed" in answer, ran.exists()) == (mode == "none", mode == "explicit"), answer
