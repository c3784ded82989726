import subprocess
import sys
import time

from benchmarks.load.bulk_runs import _ended


def test_a_run_ends_when_it_ends_and_not_at_the_next_look():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as run:
        assert not _ended(run, 0.01)
        started = time.monotonic()
        run.stdin.write(b"\n")
        run.stdin.close()
        assert _ended(run, 60)
        assert time.monotonic() - started < 30
        assert run.wait() == 0
