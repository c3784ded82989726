from pathlib import Path

from click.testing import Result
from commands import invoke

from export.repository import repository as command

NOWHERE = "127.0.0.1:1"


def operate(folder: Path, *arguments: str, server: str = NOWHERE) -> Result:
    name, *rest = arguments
    options = [] if name in ("show", "verify") else ["--server", server]
    return invoke(command, name, "--repository", folder, *options, *rest)


def ok(folder: Path, *arguments: str, server: str = NOWHERE) -> str:
    result = operate(folder, *arguments, server=server)
    assert result.exit_code == 0, result.output
    return result.output


def error(folder: Path, *arguments: str, server: str = NOWHERE) -> str:
    result = operate(folder, *arguments, server=server)
    assert result.exit_code == 1, result.output
    last = result.output.splitlines()[-1]
    assert last.startswith("Error: ")
    return last


def states(output: str) -> list[tuple[str, str, str]]:
    rows = [tuple(line.split()[:3]) for line in output.splitlines()[1:-1]]
    return [(model, version, state) for model, version, state in rows]
