import os
import signal
import subprocess
import sys

import pytest

WAITS = """
from serving.signal_loop import Loop, Stopping
loop = Loop()
loop.listen()
print("ready", flush=True)
try:
    loop.wait(loop.restart.is_set, 60, "a signal")
    print("restart", flush=True)
except Stopping:
    print("end", flush=True)
"""


@pytest.mark.parametrize(
    ("number", "is_closed", "expected"),
    [
        (signal.SIGTERM, False, b"end\n"),
        (signal.SIGINT, False, b"end\n"),
        (signal.SIGHUP, False, b"restart\n"),
        (signal.SIGHUP, True, b"end\n"),
    ],
)
def test_sighup_asks_for_a_restart_unless_the_terminal_is_closed(
    number: signal.Signals, is_closed: bool, expected: bytes
) -> None:
    master, slave = os.openpty()
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=slave) as child:
        os.close(slave)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        if is_closed:
            os.close(master)
        child.send_signal(number)
        assert child.stdout.readline() == expected
    if not is_closed:
        os.close(master)
