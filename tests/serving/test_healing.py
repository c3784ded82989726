import socket
from dataclasses import dataclass
from pathlib import Path

import pytest
from damages import published

from serving import supervisor
from serving.acts import Acts
from serving.arguments import ServerOptions, parse
from serving.healing import FAILURES, SILENCES, Judge, ServerLost, Sick
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


SILENT = Verdict(False, (Failure("linear", 1, "no answer in time"),), frozenset({"linear"}), "")
WRONG = Verdict(False, (Failure("linear", 1, "wrong", wrong=True),), frozenset({"linear"}), "")
RIGHT = Verdict(True, (), frozenset({"linear"}), "")
NOTHING = Verdict(False, (), frozenset(), "no answer")


def test_a_model_is_sick_after_two_of_its_last_four_probes() -> None:
    """Of two instances one may be dead."""
    judge = Judge()
    found = [judge.sick(each, []) for each in (WRONG, RIGHT, RIGHT, WRONG)]
    assert found == [[], [], [], [Sick("linear", "failed twice (wrong)", frozenset({1}))]]


def test_a_slow_model_is_not_sick_and_a_stuck_model_is() -> None:
    judge = Judge()
    assert [judge.sick(SILENT, [Stub(float(seconds))]) for seconds in range(9)] == 9 * [[]], "its processes work"
    judge = Judge()
    found = [judge.sick(SILENT, [Stub(1.0)]) for _ in range(1 + FAILURES)]
    assert [len(each) for each in found] == [0, 0, 1]


def test_new_processes_are_not_compared_with_old() -> None:
    """A slow model would fail at once after its load."""
    judge = Judge()
    judge.sick(SILENT, [Stub(100.0)])
    for _ in range(FAILURES):
        judge.sick(WRONG, [Stub(100.0)])
    judge.healed("linear")
    assert judge.is_healed_in_vain("linear")
    assert judge.sick(SILENT, [Stub(1.0)]) == []
    judge.sick(RIGHT, [Stub(1.0)])
    assert not judge.is_healed_in_vain("linear")


def test_a_server_that_lists_no_models_is_lost() -> None:
    judge = Judge()
    for _ in range(SILENCES - 1):
        judge.sick(NOTHING, [])
    with pytest.raises(ServerLost, match="no answer"):
        judge.sick(NOTHING, [])


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
    watching = Supervisor(options, Acts(None))
    assert watching._plans() == {}
    assert watching._plan("linear") == Plan("linear", (1,))
    assert watching._plan("removed") == Plan("removed", None)


def test_any_exception_of_a_call_is_raised(options: ServerOptions) -> None:
    def fail() -> None:
        raise KeyError("config")

    with pytest.raises(KeyError, match="config"):
        Supervisor(options, Acts(None))._call(fail)
