import socket
from dataclasses import dataclass
from pathlib import Path

import pytest
from damages import published

from serving import supervisor
from serving.acts import Acts
from serving.arguments import ServerOptions, parse
from serving.healing import Healing
from serving.loading import Loading
from serving.prober import Failure, Verdict
from serving.supervisor import Supervisor
from serving.whole import Plan


@dataclass(frozen=True)
class Stub:
    spent_s: float
    model: str = "linear"
    stopped: bool = False
    process: object = None

    def processor_s(self) -> float:
        return self.spent_s


class Anything:
    """Loading, prober, acts and waits that do nothing."""

    def __getattr__(self, name: str) -> object:
        return lambda *_: None


SILENT = Verdict(False, (Failure("linear", 1, "no answer in time"),), frozenset({"linear"}), "")
WRONG = Verdict(False, (Failure("linear", 1, "wrong"),), frozenset({"linear"}), "")


def test_new_processes_are_not_compared_with_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow model would fail at once after its load."""
    monkeypatch.setattr("serving.healing._kill", lambda stub: None)
    healing = Healing(*(Anything() for _ in range(4)))
    healing._judge(SILENT, [Stub(100.0)])
    for _ in range(2):
        healing._judge(WRONG, [Stub(100.0)])
    assert healing._reloaded == {"linear"}
    for _ in range(2):
        healing._judge(SILENT, [Stub(1.0)])


@pytest.fixture
def options(tmp_path: Path) -> ServerOptions:
    repository = published(tmp_path / "models", versions=1).parent
    return parse([f"--model-repository={repository}", "--load-model=listed", "--http-port=9", "--allow-grpc=false"])


def told(
    options: ServerOptions, health_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    for name in ("PORTS_S", "RESTARTS"):
        monkeypatch.setattr(supervisor, name, 0)
    assert Supervisor(options, Acts(None), health_port).run() == 1
    return capsys.readouterr().err


def test_no_server_starts_where_another_answers(
    options: ServerOptions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its answers would pass for those of the supervised server."""
    with socket.create_server(("127.0.0.1", 0)) as another:
        port = another.getsockname()[1]
        lines = told(options, port, monkeypatch, capsys)
    assert f"the server blocked: 127.0.0.1:{port}: expected a free port, found Address already in use" in lines
    assert "started" not in lines


def test_a_repository_that_is_away_blocks_the_start(
    options: ServerOptions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository,) = options.repositories
    repository.rename(repository.with_name("away"))
    lines = told(options, 0, monkeypatch, capsys)
    assert f"the server blocked: {repository}: expected a model repository, found No such file" in lines


def test_a_model_that_was_not_there_at_the_start_has_a_plan(options: ServerOptions) -> None:
    """An operator may load any model."""
    loading = Loading(options, Acts(None), Anything())
    assert loading.plans() == {}
    assert loading.plan("linear") == Plan("linear", (1,))
    assert loading.plan("removed") == Plan("removed", None)
