"""The system's errors name what the user typed and the reason, neither a temporary file nor a number."""

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from commands import failure

from models.data import DataError
from vitbn import main
from vitbn_packages import in_words, one_line_errors

LONG = "n" * 300
LOCKED = [
    ["repository", "promote", "vitbn", "1", "--repository", "{locked}"],
    ["repository", "prune", "vitbn", "--repository", "{locked}"],
    ["train", "--dataset", "digits", "--depth", "1", "--epochs", "1", "--output", "{locked}/run.safetensors"],
    ["proxy", "10.0.0.1", "--output", "{locked}/envoy"],
    ["export", "--model", "vitbn-tiny", "--output", "{locked}/x.onnx"],
]
OVERRIDES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: root may write anywhere


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A folder that this process may not write to."""
    folder = tmp_path / "locked"
    (folder / "vitbn" / "1").mkdir(parents=True)
    folder.chmod(0o555)
    system = ctypes.CDLL(None)
    # Version 3 of the capabilities, of this thread: effective, permitted and inheritable, the low and the high half.
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert system.capget(header, sets) == 0
    before, sets[0] = sets[0], sets[0] & ~OVERRIDES
    assert system.capset(header, sets) == 0
    yield folder
    sets[0] = before
    assert system.capset(header, sets) == 0


@pytest.mark.slow
@pytest.mark.parametrize("words", LOCKED, ids=lambda words: " ".join(words[:2]))
def test_without_permission_the_place_is_named(locked: Path, words: list[str]) -> None:
    typed = [word.format(locked=locked) for word in words]
    assert failure(main, *typed) == (f"Error: {typed[-1]}: Permission denied", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["export", "--model", "vitbn-tiny", "--name", LONG, "--repository", "."], "at most 200 letters, found 300"),
        (
            ["train", "--dataset", "digits", "--output", f"{LONG}.safetensors"],
            f"{LONG}.safetensors: File name too long",
        ),
        (["bench", "latency", "--json", f"{LONG}.json"], "a place to write to, found File name too long"),
        (["proxy", "10.0.0.1", "--output", LONG], "File name too long"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_name_that_is_too_long_is_no_traceback(words: list[str], reason: str) -> None:
    line, _ = failure(main, *words)
    assert line.endswith(reason)
    assert not re.search(r"Errno|\.lock|\.operating|/\.|/tmp\w{8}$", line)


def test_errors_of_others_stay_as_they_are() -> None:
    assert in_words(ValueError("expected 3, found 4")) == "expected 3, found 4"
    assert in_words(OSError("expected a file")) == "expected a file"
    assert in_words(OSError(28, "No space left on device")) == "No space left on device"
    assert in_words(OSError(13, "Permission denied", "a.png")) == "a.png: Permission denied"
    assert in_words(OSError(13, "Permission denied", "größe 7\n\x1b\udce9\u202e")) == (
        "größe 7\\n\\x1b\\udce9\\u202e: Permission denied"
    )


@pytest.mark.parametrize(
    "error",
    [DataError("a\n: no"), OSError(13, "no", "a\n"), click.ClickException("a\n: no"), click.UsageError("a\\n: no")],
)
def test_known_errors_end_a_command_in_one_line(error: Exception) -> None:
    with pytest.raises(click.ClickException, match=r"^a\\n: no$"), one_line_errors():
        raise error


def test_a_fault_of_the_code_keeps_its_traceback() -> None:
    with pytest.raises(ValueError, match="too few values"), one_line_errors():
        raise ValueError("too few values")


def ended(words: list[str], redirected: str) -> tuple[int, str]:
    """The exit code and the errors of a command whose streams a shell redirects; Python buffers its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = ["bash", "-c", f'exec "$@" {redirected}', "bash", sys.executable, "-m", *words]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return result.returncode, result.stderr


@pytest.mark.parametrize("words", ["vitbn models", "vitbn --help", "vitbn probe --url 127.0.0.1:1"])
def test_a_full_disk_under_the_output_is_one_line(words: str) -> None:
    line = "Error: standard output (/dev/full): No space left on device\n"
    assert ended(words.split(), ">/dev/full") == (1, line)


@pytest.mark.slow
def test_a_full_disk_under_the_output_is_no_fault_of_a_model(repository: Path) -> None:
    line = "Error: standard output (/dev/full): No space left on device\n"
    for action in ("list", "verify"):
        assert ended(["vitbn", "repository", action, "--repository", str(repository)], ">/dev/full") == (1, line)


@pytest.mark.parametrize("program", ["vitbn", "serving.serve", "serving.launcher"])
def test_a_stream_that_the_caller_closed_is_open(program: str) -> None:
    """The supervisor ended silently, and the server would have written its log into a client's socket."""
    look = f"import os, sys, {program}; sys.exit(os.system('readlink /proc/self/fd/2 | grep -qx /dev/null'))"
    assert subprocess.run(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", sys.executable, "-c", look]).returncode == 0
