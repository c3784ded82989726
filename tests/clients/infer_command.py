"""The command `vitbn infer` in this process."""

from click.testing import CliRunner
from stand_in import StandIn

from clients.infer import infer


def ask(server: StandIn, *arguments: object, given: bytes = b"") -> tuple[int, list[str], list[str]]:
    """Exit code, lines of output, lines of errors."""
    return run("--url", server.url, "--protocol", server.protocol, *arguments, given=given)


def run(*arguments: object, given: bytes = b"") -> tuple[int, list[str], list[str]]:
    result = CliRunner().invoke(infer, [str(each) for each in arguments], input=given)
    assert isinstance(result.exception, SystemExit | None)
    return result.exit_code, result.stdout.splitlines(), result.stderr.splitlines()
