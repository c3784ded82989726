"""The command `vitbn infer` in this process."""

from functools import partial

from commands import told_lines
from stand_in import StandIn

from clients.infer import infer

run = partial(told_lines, infer)


def ask(server: StandIn, *arguments: object, given: bytes = b"") -> tuple[int, list[str], list[str]]:
    """Exit code, lines of output, lines of errors."""
    return run("--url", server.url, "--protocol", server.protocol, *arguments, given=given)
