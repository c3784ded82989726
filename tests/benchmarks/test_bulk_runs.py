import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.load.bulk_baseline import BATCH_SIZE, batches
from benchmarks.presets import bulk as bulk_runs
from benchmarks.presets.bulk import _digits, _ends_within, _part_rows, _write_images


def test_the_end_of_a_run_is_seen_at_once():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as run:
        assert not _ends_within(run, 0.01)
        started = time.monotonic()
        run.stdin.write(b"\n")
        run.stdin.close()
        assert _ends_within(run, 60)
        assert time.monotonic() - started < 30
        assert run.wait() == 0


def test_the_plain_program_reads_every_image_once(tmp_path: Path) -> None:
    rows = 2 * 4096 + 700
    path = str(_write_images(tmp_path, rows))
    read = [batch for index in range(2) for batch in batches(path, index, 2)]
    assert max(map(len, read)) == BATCH_SIZE
    expected = np.resize(_digits(), (rows, 1, 28, 28))
    assert Counter(image.tobytes() for image in np.concatenate(read)) == Counter(image.tobytes() for image in expected)


@pytest.mark.parametrize(
    ("count", "rows", "expected"), [(2, 2_000_000, 100_000), (2, 10_000, 1250), (64, 2_000_000, 7812)]
)
def test_every_process_has_parts_after_its_first(count, rows, expected, monkeypatch) -> None:
    monkeypatch.setattr(bulk_runs, "cores", lambda: count)
    assert _part_rows(rows) == expected
