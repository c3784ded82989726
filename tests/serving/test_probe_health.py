import urllib.error
import urllib.request

from click.testing import CliRunner

from clients.probe import Health, Probe, probe
from serving.running import free_ports


def status(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_only_a_fresh_passing_verdict_is_healthy() -> None:
    (port,) = free_ports(1)
    health = Health(f"127.0.0.1:{port}", stale_s=1e6)
    assert status(port) == 503, "no verdict yet"
    health.heard(Probe("server", True, 0.1))
    assert status(port) == 200
    health.heard(Probe("server", False, 0.1))
    assert status(port) == 503
    stale = Health(f"127.0.0.1:{free_ports(1)[0]}", stale_s=-1)
    stale.heard(Probe("server", True, 0.1))
    assert stale.answer()[0] == 503


def test_wrong_addresses_are_one_line() -> None:
    for words, expected in (
        (["--listen", "127.0.0.1:8004"], "--listen needs --every"),
        (["--listen", "8004", "--every", "1"], "expected HOST:PORT"),
        (["--listen", "203.0.113.1:8004", "--every", "1"], "--listen 203.0.113.1:8004"),
    ):
        done = CliRunner().invoke(probe, words)
        assert done.exit_code != 0
        assert expected in done.output
