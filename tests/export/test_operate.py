import errno
import fcntl
import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar

import pytest
from artifacts import engine
from google.protobuf import json_format
from operating import NOWHERE, error, ok, operate, states
from raw_server import answering, reply

from common.repository import versions
from export.publishing.artifact import read_version
from export.publishing.manifest import Plan, Profile
from export.publishing.promote import Servers, promote, served
from export.publishing.publish import publish, read_config, serve
from export.publishing.sidecar import write_with_sidecars
from export.repository import OPERATING
from export.repository_models import for_published
from serving.model_control_client import Control, OtherConfig, Refused, Unreachable
from vitbn_packages import one_line_errors


def test_list_says_what_is_served(folder: Path) -> None:
    output = ok(folder, "list")
    assert states(output) == [("vitbn", "1", "-"), ("vitbn", "2", "yes"), ("vitbn", "3", "default")]
    accuracy = 100 * json.loads((folder / "vitbn/1/manifest.json").read_text())["metrics"]["test_accuracy"]
    assert output.count(f"{accuracy:.2f}") == 3
    assert output.count("fold-affine") == 3
    assert output.splitlines()[-1] == f"served: by config.pbtxt; no server answers at {NOWHERE}"


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"hello": []}',
        b"HTTP/1.1 501 Unsupported method ('POST')\r\nContent-Length: 6\r\n\r\n<html>",
    ],
)
def test_a_port_that_does_not_speak_http_or_triton_is_no_server(folder: Path, answer: bytes) -> None:
    with answering(lambda path: [answer]) as url:
        assert ok(folder, "list", server=url).splitlines()[-1].endswith(f"no server answers at {url}")


def test_list_says_what_is_served_by_the_files_where_a_server_does_not(folder: Path) -> None:
    """Such as another user's server, or a proxy."""
    with answering(lambda path: [reply(b'{"error": "This API is restricted"}', "403 Forbidden")]) as url:
        output = ok(folder, "list", server=url)
        assert f"{url}: This API is restricted" in error(folder, "rollback", "vitbn", server=url)
    assert states(output)[-1] == ("vitbn", "3", "default")
    assert output.splitlines()[-1].startswith(f"served: by config.pbtxt; {url}: This API is restricted (no right key ")


def test_list_shows_the_error_of_the_file_itself(folder: Path) -> None:
    """int8 versions and engines also have the float32 graph's error."""
    artifact = read_version(folder / "vitbn" / "1")
    for added in ({"precision": "int8"}, {"precision": "fp16", "engine": Plan(Profile(1, 1, 1), 0.004)}):
        publish(folder, "vitbn", artifact.with_origin(**added))
    errors = [line.split()[4] for line in ok(folder, "list").splitlines()[1:-1]]
    assert errors == [*[f"{artifact.network.max_abs_error:.1e}"] * 3, "-", "4.0e-03"]


def test_rollback_and_promote(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.parent.name.isdecimal()}
    ok(folder, "rollback", "vitbn")
    assert served(folder / "vitbn") == [1, 2]
    ok(folder, "rollback", "vitbn")
    assert served(folder / "vitbn") == [1]
    assert "expected a version older than 1, found none" in error(folder, "rollback", "vitbn")
    assert "version 3 is the default" in ok(folder, "promote", "vitbn", "3")
    assert served(folder / "vitbn") == [2, 3]
    assert all(path.read_bytes() == content for path, content in before.items()), "no version was touched"


class RefusesOnce(Control):
    """A supervised server that loads a model again just when the load that an operator asked for fails."""

    asked: ClassVar[list[list[int]]] = []

    def load(self, model: str, config: str | None = None, timeout_s: float = 0) -> None:
        self.asked.append(served(Path(self.url)))
        if len(self.asked) == 1:
            raise Refused("the process died")


def test_every_change_dates_the_config_after_all_files_because_triton_loads_only_newer_ones(folder: Path) -> None:
    config, dates_ns = folder / "vitbn/config.pbtxt", [4102444800 * 10**9]  # the year 2100: the clock was ahead
    os.utime(folder / "vitbn" / "2", ns=(dates_ns[0], dates_ns[0]))
    for change in (
        lambda: ok(folder, "promote", "vitbn", "3"),
        lambda: ok(folder, "rollback", "vitbn"),
        lambda: publish(folder, "vitbn", read_version(folder / "vitbn" / "1")),
    ):
        change()
        dates_ns.append(config.stat().st_mtime_ns)
    assert dates_ns == sorted({*dates_ns})


def test_a_server_that_refused_a_change_loads_what_it_served(folder: Path) -> None:
    """Else it may serve the change that is undone on disk."""
    before, server = served(folder / "vitbn"), RefusesOnce(str(folder / "vitbn"))
    with pytest.raises(Refused, match="the process died"):
        promote(folder / "vitbn", 2, Servers([server]))
    assert server.asked == [[1, 2], before]


@pytest.mark.parametrize(("ready", "elsewhere"), [([1, 2], False), ([2, 3], True)])
def test_a_server_has_another_repository_if_it_serves_other_versions(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ready: list[int], elsewhere: bool
) -> None:
    """The version policy that Triton tells is that of the first load of each version, so it does not count."""

    def told(control: Control, model: str) -> dict[str, object]:
        config = json_format.MessageToDict(read_config(folder / model), preserving_proto_field_name=True)
        return config | {"version_policy": {"latest": {"num_versions": 2}}}

    monkeypatch.setattr(Control, "load", lambda *arguments: None)
    monkeypatch.setattr(Control, "config", told)
    monkeypatch.setattr(Control, "served", lambda control: {"vitbn": ready})
    with pytest.raises(OtherConfig) if elsewhere else nullcontext():
        promote(folder / "vitbn", 2, Servers([Control("127.0.0.1:1")]))


def test_servers_that_answer_load_a_change_while_another_is_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def served_by(control: Control) -> dict[str, list[int]]:
        if control.url == NOWHERE:
            raise Unreachable(control.url)
        return {"vitbn": [2, 3]}

    monkeypatch.setattr(Control, "served", served_by)
    monkeypatch.setattr(Control, "load", lambda control, model: loaded.append(control.url))
    output = ok(folder, "promote", "vitbn", "2", "--server", "host:1", "--server", NOWHERE, server="host:2")
    assert f"Not served yet: no server at {NOWHERE}. " in output
    assert loaded == ["host:2", "host:1"]
    output = ok(folder, "list", "--server", "host:1")
    assert output.endswith(f"served: by the server at host:1; no server answers at {NOWHERE}\n")


def test_a_closed_pipe_is_no_fault_of_a_model(folder: Path) -> None:
    def write(model_dir: Path) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(BrokenPipeError), one_line_errors():
        for_published([folder / "vitbn"], write)


def test_show_prints_the_manifest_of_the_served_version(folder: Path) -> None:
    assert json.loads(ok(folder, "show", "vitbn")) == json.loads((folder / "vitbn/3/manifest.json").read_text())


def test_prune_keeps_what_is_served_and_the_newest(folder: Path, repository: Path) -> None:
    for _ in range(2):
        publish(folder, "vitbn", read_version(repository / "vitbn" / "1"))
    serve(folder / "vitbn", [2])
    (folder / "vitbn" / ".publishing-dead").mkdir()
    output = ok(folder, "prune", "--keep", "1")
    assert versions(folder / "vitbn") == [2, 5]
    assert ".publishing-dead" in output
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["vitbn"]


def test_a_promotion_to_a_full_disk_promises_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = operate(folder, "promote", "vitbn", "1")
    assert result.exit_code == 1
    assert result.output == f"Error: {folder}/vitbn/config.pbtxt: No space left on device\n"
    assert served(folder / "vitbn") == [2, 3]


def test_prune_waits_for_a_promotion(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*unused: object, **options: object) -> None:
        with (folder / OPERATING).open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setattr("export.publishing.promote.connect", connect)
    ok(folder, "prune")


def test_prune_keeps_what_a_served_link_leads_to(folder: Path) -> None:
    (folder / "vitbn" / "4").symlink_to("1")
    ok(folder, "prune", "--keep", "1")
    assert versions(folder / "vitbn") == [1, 3, 4]


@pytest.fixture
def crowded(folder: Path, tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    (folder / "a_folder").mkdir()
    (folder / "b_link").symlink_to(tmp_path / "notes")
    (folder / "vitbn" / "1").rename(tmp_path / "one")
    (folder / "vitbn" / "1").symlink_to(tmp_path / "one")
    return folder


def test_folders_of_another_origin_are_named_and_left_alone(crowded: Path, tmp_path: Path) -> None:
    (crowded / "ensemble" / "1").mkdir(parents=True)
    (crowded / "ensemble" / "config.pbtxt").write_text('name: "ensemble" platform: "ensemble"')
    (crowded / ".ipynb_checkpoints").mkdir()
    for arguments in (("list",), ("verify",), ("prune", "--keep", "1")):
        result = operate(crowded, *arguments)
        assert result.exit_code == 0, result.output
        named = [line.split()[0] for line in result.stderr.splitlines() if "of another origin: no manifest" in line]
        assert named == [".ipynb_checkpoints", "a_folder", "b_link", "ensemble"]
        if arguments == ("list",):
            assert [line.split()[:2] for line in result.stdout.splitlines()[1:4]] == [["vitbn", n] for n in "123"]
    assert versions(crowded / "vitbn") == [2, 3]
    assert (tmp_path / "one" / "model.onnx").is_file(), "only the link to it is removed"
    assert (tmp_path / "notes").is_dir()


def test_a_broken_model_is_a_failure_beside_others(crowded: Path) -> None:
    (crowded / "vitbn" / "config.pbtxt").unlink()
    for arguments in (("list",), ("prune", "--keep", "1")):
        result = operate(crowded, *arguments)
        assert result.exit_code == 1
        assert result.output.count("expected the config of a published model") == 1
        assert result.output.splitlines()[-1].endswith("expected every model as published, found 1 that are not")


def test_verify_takes_names(folder: Path) -> None:
    shutil.copytree(folder / "vitbn", folder / "other")
    assert [line.split()[0] for line in operate(folder, "verify", "vitbn").stdout.splitlines()] == ["vitbn"] * 3
    result = operate(folder, "verify", "vitbn", "other")
    assert (result.exit_code, result.output.count("  ok\n")) == (1, 3)
    assert "other/config.pbtxt: expected the name other, found vitbn" in result.output
    assert "expected the name other, found vitbn" in error(folder, "promote", "other", "2")
    assert "expected the name other, found vitbn" in error(folder, "rollback", "other")
    assert "expected one of its models (other, vitbn), found 'third'" in error(folder, "verify", "third")
    config = folder / "other" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "vitbn"\n', "", 1))  # Triton takes the folder's
    assert "other: version 2 is the default" in ok(folder, "promote", "other", "2")


def test_publish_of_a_tensorrt_plan(folder: Path, exported: Path) -> None:
    file = exported.with_name("fast.plan")
    write_with_sidecars(file, engine(1, 512))
    ok(folder, "publish", str(file))
    assert "no answer asked of model.plan" in ok(folder, "verify", "vitbn_trt")
