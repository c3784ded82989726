import csv
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from idx_files import idx_bytes
from infer_command import ask
from stand_in import StandIn

from clients import retry_and_failover
from clients.prediction import Prediction
from clients.printing import Item, Printer

ROOT = Path(__file__).resolve().parents[2]
DIGIT = str(ROOT / "digit.png")
WITHIN_S = 60


@pytest.fixture
def server(request):
    with StandIn().serving(getattr(request, "param", "http")) as stand_in:
        yield stand_in


PROTOCOLS = pytest.mark.parametrize("server", ["http", "grpc"], indirect=True)


@pytest.fixture
def images(tmp_path):
    def images(count):
        path = tmp_path / f"{count}-images"
        path.write_bytes(idx_bytes(np.full((count, 28, 28), 50 + np.arange(count)[:, None, None] % 200, np.uint8)))
        return str(path)

    return images


def start(server, *arguments, **streams):
    command = [sys.executable, str(ROOT / "clients/infer.py"), "--url", server.url, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen(command, **pipes, env={**os.environ, "PYTHONWARNINGS": "error"})


def test_a_long_label_makes_its_own_line_long_alone(capsys):
    labels = ("a" * 300, "b")
    printer = Printer("text", top=2, split=False, reject_below=None)
    answer = Prediction("b", 0.7, 1, labels, (0.3, 0.7), 0.0, "1", 1.0)
    printer.print_answer(Item("x.png", np.zeros((1, 28, 28), np.uint8), 1, 1), answer, model=None)
    assert [len(line) for line in capsys.readouterr().out.splitlines()[1:]] == [51, 311]


def test_text_json_and_csv_say_the_same(server, images, tmp_path):
    path = Path(images(5)).rename(tmp_path / 'a,"b".idx')
    answers = [json.loads(line) for line in ask(server, path, "--json", "--top", 3)[1]]
    assert list(answers[0]) == ["file", "shapes", "label", "probability", "top", "model", "version", "latency_ms"]
    first, *ranked = ask(server, path, "--top", 3)[1][:4]
    shown = [float(line.split()[1]) for line in ranked]
    assert (first[-3:], ranked[0].split()[0], shown) == (" %)", answers[0]["label"], sorted(shown, reverse=True))
    assert len({len(line) for line in ranked}) == 1
    rows = list(csv.DictReader(ask(server, path, "--csv", "--top", 99)[1]))
    assert list(rows[0]) == [
        *("file", "label", "probability", "label_2", "probability_2", "label_3", "probability_3"),
        *("model", "version", "latency_ms"),
    ]
    for answer, row in zip(answers, rows, strict=True):
        ranks = [("label", "probability"), ("label_2", "probability_2"), ("label_3", "probability_3")]
        found = [{"label": row[name], "probability": float(row[share])} for name, share in ranks]
        assert found == answer["top"]
        for column in ("file", "label", "model", "version"):
            assert row[column] == answer[column]
        assert min(float(row["latency_ms"]), answer["latency_ms"]) > 0
    assert len({answer["label"] for answer in answers}) > 1


@PROTOCOLS
def test_options_reach_the_server(server, images):
    options = ["--batch-size", 2, "--concurrency", 1, "--header", "X-Key: a:b ", "--header", "other:", "--model", "net"]
    assert ask(server, images(5), *options)[0] == 0
    assert server.batches == [2, 2, 1]
    assert server.most_at_once == 1
    assert {headers["x-key"] for headers in server.headers} == {"a:b"}


def test_a_server_that_fails_on_the_way(server, images, monkeypatch):
    monkeypatch.setattr(retry_and_failover, "_LONGEST_PAUSE_S", 0.05)  # ten retries take 15 s otherwise
    server.before = lambda number: "too busy" if number >= 2 else None
    code, lines, errors = ask(server, images(30), "--batch-size", 4, "--concurrency", 1)
    assert (code, len(lines), len(errors)) == (3, 8, 1)
    assert errors[0].endswith("is too busy: too busy")


def test_the_time_limit(server, images):
    server.before = lambda number: time.sleep(1)
    code, lines, errors = ask(server, images(1), "--timeout", 0.3)
    assert (code, lines, len(errors)) == (3, [], 1)
    assert "did not answer within 0.3 s" in errors[0]


@pytest.mark.slow
def test_an_interrupt_ends_it_at_once(server, images):
    reached, go_on = threading.Event(), threading.Event()

    def hold(number):
        if number == 3:
            reached.set()
        if number >= 3:
            go_on.wait(WITHIN_S)

    server.before = hold
    process = start(server, images(1000), "--batch-size", "4")
    assert process.stdout.readline().startswith(b"/")
    assert reached.wait(WITHIN_S)
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=WITHIN_S)
    finally:
        go_on.set()
    assert (process.returncode, errors) == (130, b"")


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(server, images):
    process = start(server, images(20_000))
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(WITHIN_S) == 141


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is missing")
def test_a_full_disk_is_reported_in_a_line(server):
    with Path("/dev/full").open("wb") as full:
        process = start(server, DIGIT, stdout=full)
    _, errors = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, errors) == (1, b"Error: standard output (/dev/full): No space left on device\n")


@pytest.mark.slow
def test_a_progress_bar_is_shown_only_in_a_terminal(server, images):
    server.before = lambda number: time.sleep(0.05)
    arguments = [images(40), "missing.png", "--batch-size", "1", "--concurrency", "1"]
    shown, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = start(server, *arguments, stderr=terminal)
    os.close(terminal)
    answers = process.stdout.read()
    process.stdout.close()
    text = b""
    while part := read_terminal(shown):
        text += part
    os.close(shown)
    assert process.wait(WITHIN_S) == 1
    assert answers.count(b"\n") == 40
    assert b"images/s]" in text
    assert b"/41 [" in text
    assert text.count(b"Error: missing.png") == 1
    server.before = lambda number: None
    silent = start(server, *arguments)
    assert silent.communicate(timeout=WITHIN_S)[1].count(b"\n") == 1


def read_terminal(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other side is closed
        return b""


PEAK = """
import sys
from pathlib import Path
from clients.infer import infer
try:
    infer(sys.argv[1:])
except SystemExit as end:
    status = Path("/proc/self/status").read_text()
    print(end.code, status.partition("VmHWM:")[2].split()[0], file=sys.stderr)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_images(server, images):
    server.max_batch_size = 128
    peaks = []
    for count in (2_000, 25_000):
        command = ["--url", server.url, "--protocol", server.protocol, images(count), "--csv"]
        done = subprocess.run([sys.executable, "-c", PEAK, *command], capture_output=True, timeout=WITHIN_S, check=True)
        assert done.stdout.count(b"\n") == count + 1
        code, peak_kib = done.stderr.split()
        assert code == b"0"
        peaks.append(int(peak_kib))
    assert peaks[1] - peaks[0] < 10 * 1024
