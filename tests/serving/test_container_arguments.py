"""The server of deploy/container and deploy/kubernetes, by their own arguments: it answers, and takes no load."""

import json
from pathlib import Path

import pytest
import yaml
from published_models import published

from benchmarks.drills import control_calls, hostile_requests
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
def test_it_answers_and_runs_no_stranger_s_code(tmp_path: Path) -> None:
    """test_control_calls.py sees the same call run the code on a server in explicit mode."""
    published(tmp_path / "models", versions=1)
    path, content = control_calls.calls(tmp_path / "ran")["load code"]
    arguments = [each for each in SERVERS["compose"] if not each.startswith("--model-repository")]
    # Without a key, as in a container.
    with running_server(tmp_path / "models", [*arguments, "--open-control"]) as server:
        assert probe_server(server.http_url, timeout_s=5).ok
        _, answer = hostile_requests.send(server.http_url, "POST", f"/v2/{path}", json.dumps(content).encode())
    assert (b"load / unload is not allowed" in answer, (tmp_path / "ran").exists()) == (True, False), answer
