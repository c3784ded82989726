from click.testing import CliRunner


def invoke(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def told(command, *arguments):
    """The exit status, and all that is printed."""
    result = invoke(command, *arguments)
    return result.exit_code, result.output


def ok(command, *arguments):
    result = invoke(command, *arguments)
    assert result.exit_code == 0, result.output
    return result


def failure(command, *arguments):
    """The one line of an error, and the exit status."""
    result = invoke(command, *arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert result.stderr.endswith(line + "\n")
    return line, result.exit_code
