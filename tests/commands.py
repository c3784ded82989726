import json

from click.testing import CliRunner


def invoke(command, *arguments, given=None):
    return CliRunner().invoke(command, [str(argument) for argument in arguments], input=given)


def told(command, *arguments):
    """The exit status, and all that is printed. An error that the command does not catch is raised."""
    result = invoke(command, *arguments)
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    return result.exit_code, result.output


def told_lines(command, *arguments, given=b""):
    """The exit status, the lines of the output, and those of the errors."""
    result = invoke(command, *arguments, given=given)
    assert isinstance(result.exception, SystemExit | None)
    return result.exit_code, result.stdout.splitlines(), result.stderr.splitlines()


def ok(command, *arguments):
    result = invoke(command, *arguments)
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def measured(command, path, *arguments, code=0):
    """What a benchmark prints, and what it writes to `path`."""
    status, printed = told(command, *arguments, "--json", path)
    assert status == code, printed
    return printed, json.loads(path.read_text())


def failure(command, *arguments):
    """The one line of an error, and the exit status."""
    result = invoke(command, *arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert result.stderr.endswith(line + "\n")
    return line, result.exit_code
