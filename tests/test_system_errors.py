"""The system's errors name what the user typed and the reason, neither a temporary file nor a number."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from commands import failure

from models.data import DataError
from vitbn import main
from vitbn_packages import in_words, one_line_errors

ROOT = Path(__file__).parents[1]
# Root may write anywhere, unless it gives that up.
PLAIN = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
LONG = "n" * 300
LOCKED = [
    ["repository", "promote", "vitbn", "1", "--repository", "{locked}"],
    ["repository", "prune", "vitbn", "--repository", "{locked}"],
    ["train", "--dataset", "digits", "--depth", "1", "--epochs", "1", "--output", "{locked}/run.safetensors"],
    ["proxy", "10.0.0.1", "--output", "{locked}/envoy"],
    ["export", "--model", "vitbn-tiny", "--output", "{locked}/x.onnx"],
]
# All in one process: to start a process and to import the commands takes longer than they do.
PROGRAM = """
import json, sys
from click.testing import CliRunner
from vitbn import main
for words in json.loads(sys.argv[1]):
    result = CliRunner().invoke(main, words)
    print(json.dumps([words, result.exit_code, result.stderr.splitlines()[-1]]))
"""


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[list[str], int, str]]:
    """Words, exit status and last line of each command of LOCKED."""
    folder = tmp_path_factory.mktemp("place") / "locked"
    (folder / "vitbn" / "1").mkdir(parents=True)
    folder.chmod(0o555)
    words = json.dumps(LOCKED).replace("{locked}", str(folder))
    done = subprocess.run([*PLAIN, sys.executable, "-c", PROGRAM, words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(LOCKED)), ids=lambda number: " ".join(LOCKED[number][:2]))
def test_without_permission_the_place_is_named(refused: list[tuple[list[str], int, str]], number: int) -> None:
    words, code, line = refused[number]
    assert (code, line) == (1, f"Error: {words[-1]}: Permission denied")


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


@pytest.mark.parametrize("error", [DataError("a: no"), OSError(13, "no", "a"), click.UsageError("a: no")])
def test_known_errors_end_a_command_in_one_line(error: Exception) -> None:
    with pytest.raises(click.ClickException, match=r"^a: no$"), one_line_errors():
        raise error


def test_a_fault_of_the_code_keeps_its_traceback() -> None:
    with pytest.raises(ValueError, match="too few values"), one_line_errors():
        raise ValueError("too few values")
