"""Every call that changes a server is refused without its key, and does its work on a server that was opened."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import ok
from published_models import published
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException
from waiting import wait_until

from benchmarks.drills import control_calls
from clients.probing.server_probe import probe_server
from export.repository import repository as command
from serving import control_key
from serving.local_server import Server, running_server
from serving.model_control_client import Control, Refused

pytestmark = [pytest.mark.live, pytest.mark.slow]
MODEL = "linear"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("models")
    published(folder, versions=1)
    return folder


@pytest.fixture(scope="module", params=["plain", "supervised"])
def closed(request: pytest.FixtureRequest, repository: Path) -> Iterator[Server]:
    if request.param == "plain":
        yield request.getfixturevalue("server")
        return
    with running_server(repository, supervised=True) as server:
        wait_until(lambda: probe_server(server.http_url).ok, "right")
        yield server


def test_a_foreign_page_changes_nothing(closed: Server, tmp_path: Path) -> None:
    statuses = control_calls.send(closed.http_url, tmp_path / "ran", MODEL)
    assert set(statuses.values()) == {control_calls.REFUSED}, statuses
    assert not (tmp_path / "ran").exists()
    assert probe_server(closed.http_url, timeout_s=5).ok


def test_nobody_changes_the_server_over_grpc_without_the_key(closed: Server) -> None:
    with InferenceServerClient(closed.grpc_url) as client:
        for call in (
            lambda: client.load_model("evil", config="{}", files={"file:1/model.py": b""}),
            lambda: client.unload_model(MODEL),
            lambda: client.register_system_shared_memory("foreign", "/foreign", 784),
            lambda: client.update_log_settings({"log_verbose_level": 1}),
            lambda: client.update_trace_settings(settings={"trace_rate": "1"}),
            client.get_model_repository_index,
        ):
            with pytest.raises(InferenceServerException, match="protocol is restricted, expecting header"):
                call()
        assert client.is_model_ready(MODEL)


def test_the_user_who_started_it_has_the_key(closed: Server) -> None:
    control = Control.at(closed.http_url, closed.grpc_url)
    assert control.served()[MODEL] == [1]
    control.load(MODEL)
    with pytest.raises(
        Refused, match=r"no right key in /.*/vitbn[-0-9]*/\d+; who started the server has it: --key-file FILE"
    ):
        Control.at(closed.http_url, closed.grpc_url, key="wrong").load(MODEL)


@pytest.mark.parametrize("name", ["a;b", "a/b", "$(touch x)", ""])
def test_a_name_that_triton_never_answers_is_not_sent(closed: Server, name: str) -> None:
    with pytest.raises(Refused, match="model name: expected letters"):
        Control.at(closed.http_url).load(name)


def test_an_opened_server_does_what_each_call_asks(repository: Path, tmp_path: Path) -> None:
    """Else the refusals above would show nothing."""
    with running_server(repository, ["--open-control"]) as server:
        kept = control_key.find(server.http_url)
        statuses = control_calls.send(server.http_url, tmp_path / "ran", MODEL)
        assert control_calls.REFUSED not in statuses.values(), statuses
        assert (tmp_path / "ran").exists(), "the code of a stranger ran"
        wait_until(lambda: not probe_server(server.http_url).ok, "unloaded")
    assert kept is None


@pytest.fixture(scope="module")
def own_key(repository: Path) -> Iterator[Server]:
    """Others reach its HTTP; the user has guarded a part of its control interface."""
    own = [f"{option}=model-repository:admin=7" for option in ("--http-restricted-api", "--grpc-restricted-protocol")]
    with running_server(repository, [*own, "--http-address=0.0.0.0"]) as server:
        yield server


def test_the_users_own_key_wins_and_is_said(own_key: Server) -> None:
    assert "your key guards model-repository; the key of this start guards" in own_key.log()
    with pytest.raises(Refused, match="expecting header 'admin'"):
        Control.at(own_key.http_url).index()
    assert Control.at(own_key.http_url, headers={"admin": "7"}).served() == {MODEL: [1]}


def test_a_server_that_others_reach_warns_once(own_key: Server) -> None:
    (warning,) = [line for line in own_key.log().splitlines() if line.startswith("tritonserver: warning")]
    assert "http at 0.0.0.0: one HTTP request from there can end Triton 2.51; put `vitbn proxy`" in warning


def test_the_tools_work_without_options(closed: Server, repository: Path) -> None:
    listed = ok(command, "list", "--repository", repository, "--server", closed.http_url)
    assert f"served: by the server at {closed.http_url}" in listed.stdout
    assert json.loads(probe_server(closed.http_url).to_json())["ok"]
