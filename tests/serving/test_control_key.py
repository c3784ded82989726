import os
import shutil
import stat
from pathlib import Path

import pytest

from serving import control_key, restricted_api
from serving.control_key import HEADER, KeyFailed
from serving.parse_triton_arguments import Arguments

CLOSED = "model-repository,shared-memory,logging,trace"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "vitbn"


def test_only_this_user_reads_a_key_and_finds_it_by_the_port(state: Path) -> None:
    control_key.keep([8000, 8001], "old")
    control_key.keep([8000], "secret")
    assert (control_key.find("127.0.0.1:8000"), control_key.find("localhost:8001")) == ("secret", "old")
    assert (control_key.find("[::1]:8000"), control_key.find("10.0.0.1:8000"), control_key.find("127.0.0.1:9")) == (
        "secret",
        None,
        None,
    )
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()} == {0o600}
    control_key.forget([8000, 8001], "old")
    assert [path.name for path in state.iterdir()] == ["8000"], "another server has taken port 8000 since"


def test_the_newest_key_counts_where_a_service_and_a_shell_differ(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control_key.keep([8000], "of the shell")
    (runtime := tmp_path / "runtime").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    control_key.keep([8000], "of the service")
    assert (runtime / "vitbn" / "8000").read_text() == "of the service\n"
    os.utime(state / "8000", ns=(0, 0))
    assert control_key.find("127.0.0.1:8000") == "of the service"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
    assert control_key.folders()[0] == state
    monkeypatch.delenv("XDG_STATE_HOME")
    assert control_key.folders() == [Path(control_key.tempfile.gettempdir(), f"vitbn-{os.getuid()}")]


def test_a_folder_of_another_user_gets_no_key_and_tells_none(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control_key.keep([8000], "secret")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(KeyFailed, match=f"^{state}: expected a folder of user 12345, found another user's or a link$"):
        control_key.keep([8000], "new")
    assert control_key.find("127.0.0.1:8000") is None
    shutil.rmtree(state)
    state.write_text("")
    with pytest.raises(KeyFailed, match=f"^{state}: expected a folder for .*'s key, found File exists$"):
        control_key.keep([8000], "new")


@pytest.mark.parametrize("content", ["", "\n", "a\nb", "ä", "x" * 2000])
def test_a_file_without_a_key_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(KeyFailed, match=f"^{path}: expected a key of printable ASCII characters, found none$"):
        control_key.read(path)


@pytest.mark.parametrize(
    ("given", "added", "theirs"),
    [
        ([], [f"--http-restricted-api={CLOSED}", f"--grpc-restricted-protocol={CLOSED}"], []),
        (
            ["--http-restricted-api", "model-repository,health:admin=7"],
            ["--http-restricted-api=shared-memory,logging,trace", f"--grpc-restricted-protocol={CLOSED}"],
            ["model-repository"],
        ),
        ([f"--http-restricted-api={CLOSED}:{HEADER}=7", f"--grpc-restricted-protocol={CLOSED}:{HEADER}=7"], [], []),
        (["--open-control"], [], []),
        (["--open-control", "--http-address=0.0.0.0", "--open-control"], [], []),
    ],
    ids=["closed", "partly the user's", "by the supervisor", "open", "open to all"],
)
def test_apis_that_the_user_guards_stay_and_all_others_get_a_guard(
    given: list[str], added: list[str], theirs: list[str]
) -> None:
    assert restricted_api.options(Arguments(given), "secret") == [f"{each}:{HEADER}=secret" for each in added]
    assert restricted_api.user_guarded(Arguments(given)) == theirs


@pytest.mark.parametrize("place", ["--http-address=0.0.0.0", "--grpc-address=::", "--http-address=ipv6:::"])
def test_an_open_interface_beyond_loopback_needs_to_be_asked_for_twice(place: str) -> None:
    with pytest.raises(
        ValueError, match=r"^--open-control: expected loopback, found (http|grpc) at .*: write --open-con"
    ):
        restricted_api.options(Arguments(["--open-control", place]), "secret")
    for harmless in ("--http-address=127.0.0.2", "--grpc-address=localhost", "--http-address=ipv6:::1"):
        assert restricted_api.exposed(Arguments([harmless])) == []
    assert restricted_api.exposed(Arguments([place, "--allow-http=false", "--allow-grpc=0"])) == []
