import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from published_models import published

from serving import supervisor
from serving.events import Events
from serving.healing import FAILURES, SILENCES, Judge, ServerLost, Sick
from serving.intact_versions import Plan
from serving.parse_triton_arguments import Arguments
from serving.prober import Failure, Verdict
from serving.supervisor import RESTARTS, GivesUp, Supervisor
from serving.version_selection import Versions


@dataclass(frozen=True)
class Stub:
    spent_s: float
    model: str = "linear"
    stopped: bool = False
    process: object = None

    def processor_s(self) -> float:
        return self.spent_s


def verdict(*failures: Failure, versions: int = 1, state: str = "right") -> Verdict:
    states = {("linear", number): state for number in range(1, versions + 1)}
    return Verdict(not failures, states | {(each.model, each.version): "failed" for each in failures}, failures)


SILENT = verdict(Failure("linear", 1, "no answer in time"))
FAILED = verdict(Failure("linear", 1, "HTTP 500"))
WRONG = verdict(Failure("linear", 1, "an error of 4", wrong=True))
RIGHT = verdict()
NEWER = verdict(Failure("linear", 2, "NaN", wrong=True), versions=2)
BROKEN = verdict(Failure("linear", 1, "expected the SHA-256", broken=True))
NOTHING = Verdict(False, {}, (), "no answer")
CLOSED = ("--allow-grpc=false", "--allow-metrics=false")  # their usual ports may be another test's server's
GIVEN_UP = [Sick("linear", "version 1 answers wrong (an error of 4)", wrong={1: "an error of 4"})]


@pytest.mark.parametrize(
    ("events", "sick"),
    [
        # Of two instances one may be dead.
        ((RIGHT, FAILED, RIGHT, FAILED), [Sick("linear", "failed twice (HTTP 500)")]),
        ((RIGHT, WRONG, RIGHT, WRONG), [Sick("linear", "failed twice (an error of 4)")]),
        # A version that was never right gets no second chance, nor after a load, nor with other files.
        ((WRONG,), GIVEN_UP),
        ((RIGHT, NEWER), [Sick("linear", "version 2 answers wrong (NaN)", wrong={2: "NaN"})]),
        ((RIGHT, lambda judge: judge.healed("linear"), WRONG), GIVEN_UP),
        ((RIGHT, lambda judge: judge.is_new("linear", 1), WRONG), GIVEN_UP),
        ((RIGHT, BROKEN), [Sick("linear", "expected the SHA-256", broken=True)]),
    ],
)
def test_the_last_of_these_events_makes_a_model_sick(
    events: tuple[Verdict | Callable[[Judge], None], ...], sick: list[Sick]
) -> None:
    judge = Judge()
    found = [judge.sick(each, []) if isinstance(each, Verdict) else each(judge) or [] for each in events]
    assert found == [*([] for _ in events[1:]), sick]


def test_a_slow_model_is_not_sick_and_a_stuck_model_is() -> None:
    judge = Judge()
    assert [judge.sick(SILENT, [Stub(float(seconds))]) for seconds in range(9)] == 9 * [[]], "its processes work"
    judge = Judge()
    found = [judge.sick(SILENT, [Stub(1.0)]) for _ in range(1 + FAILURES)]
    assert [len(each) for each in found] == [0, 0, 1]


@pytest.mark.parametrize(
    ("silent", "versions", "expected"), [([1], 1, {1}), ([2], 2, {2}), ([1, 2], 2, set())], ids=["alone", "new", "all"]
)
def test_a_version_that_two_loads_have_not_made_quick_is_slow(
    silent: list[int], versions: int, expected: set[int]
) -> None:
    """If all are, the server is."""
    judge, slow = (
        Judge(),
        verdict(*(Failure("linear", each, "no answer in time") for each in silent), versions=versions),
    )
    for loads in (1, 2):
        sick = [each for _ in range(FAILURES) for each in judge.sick(slow, [])]
        assert [set(each.slow) for each in sick] == [expected if loads == 2 else set()]
        judge.healed("linear")


def test_a_version_that_answers_others_in_time_for_once_is_no_quicker() -> None:
    """Requests pile up at it; the end of any lets a probe pass as busy."""
    judge, slow, busy = Judge(), verdict(Failure("linear", 1, "no answer in time")), verdict(state="busy")
    judge.healed("linear")
    found = [judge.sick(each, []) for each in (slow, busy, busy, busy, busy, slow)]
    assert [[dict(each.slow) for each in sick] for sick in found] == [*5 * [[]], [{1: "no answer in time"}]]
    judge = Judge()
    assert [judge.sick(each, []) for each in (RIGHT, slow, busy, busy, busy, slow)] == 6 * [[]], "it was right before"


def test_new_processes_are_not_compared_with_old() -> None:
    """A slow model would fail at once after its load."""
    judge = Judge()
    judge.sick(SILENT, [Stub(100.0)])
    for _ in range(FAILURES):
        judge.sick(FAILED, [Stub(100.0)])
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
def options(tmp_path: Path) -> Arguments:
    repository = published(tmp_path / "models", versions=1).parent
    return Arguments([f"--model-repository={repository}", "--load-model=listed", "--http-port=9", *CLOSED])


def told(
    options: Arguments, health_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    for name in ("PORTS_S", "RESTARTS"):
        monkeypatch.setattr(supervisor, name, 0)
    assert Supervisor(options, Events(None), "", [], health_port).run() == 1
    return capsys.readouterr().err


def test_no_server_starts_where_another_answers(
    options: Arguments, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its answers would pass for those of the supervised server."""
    with socket.create_server(("127.0.0.1", 0)) as another:
        port = another.getsockname()[1]
        lines = told(options, port, monkeypatch, capsys)
    assert f"the server blocked: 127.0.0.1:{port}: expected a free port, found Address already in use" in lines
    assert "started" not in lines


def test_only_failed_starts_make_it_give_up(options: Arguments, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends the server ten times must not end the service."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.0)
    watching = Supervisor(options, Events(None), "", [])
    for _ in range(2 * RESTARTS):
        watching._healthy = True
        watching._pause()
    watching._healthy = False
    for _ in range(RESTARTS - 1):
        watching._pause()
    with pytest.raises(GivesUp, match="10 restarts within 600 s were in vain"):
        watching._pause()


def test_a_repository_that_is_away_blocks_the_start(
    options: Arguments, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = Path(*options.repositories)
    repository.rename(repository.with_name("away"))
    lines = told(options, 0, monkeypatch, capsys)
    assert f"the server blocked: {repository}: expected a model repository, found No such file" in lines


def test_a_model_that_was_not_there_at_the_start_has_a_plan(options: Arguments) -> None:
    """An operator may load any model."""
    versions = Versions(options, Events(None))
    assert versions.plans() == {}
    assert versions.plan("linear") == Plan("linear", (1,))
    assert versions.plan("removed") == Plan("removed", None)


def test_any_exception_of_a_call_is_raised(options: Arguments) -> None:
    def fail() -> None:
        raise KeyError("config")

    with pytest.raises(KeyError, match="config"):
        Supervisor(options, Events(None), "", [])._call(fail)
