"""Prometheus, Alertmanager and a webhook, with the committed configuration made quick."""

import json
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from background import running

from benchmarks.drills.running_fleet import RunningFleet
from serving.ports import free_ports

ROOT = Path(__file__).parents[2] / "deploy"
PROGRAMS = ("prometheus", "promtool", "prometheus-alertmanager")


def needs(*programs: str) -> pytest.MarkDecorator:
    """Of Debian's packages prometheus and prometheus-alertmanager."""
    missing = [each for each in programs if not shutil.which(each)]
    return pytest.mark.skipif(bool(missing), reason=f"not on PATH: {', '.join(missing)}")


@dataclass(frozen=True)
class Monitoring:
    """`alerts`: what Alertmanager has sent."""

    url: str
    alerts: list[dict[str, Any]]

    def query(self, expression: str) -> list[Any]:
        """AssertionError if Prometheus refuses the expression."""
        question = urllib.parse.urlencode({"query": expression})
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/api/v1/query?{question}", timeout=10) as answer:
            return list(json.loads(answer.read())["data"]["result"])
        return []


@contextmanager
def monitoring(folder: Path, fleet: RunningFleet) -> Iterator[Monitoring]:
    """Scrapes what servers.json lists, at the ports of `fleet`, each second."""
    prometheus_port, manager_port, webhook_port = free_ports(3)
    alerts: list[dict[str, Any]] = []
    places = {
        "127.0.0.1:8003": fleet.metrics_url,
        "127.0.0.1:8004": fleet.admin_url,
        "127.0.0.1:9093": f"127.0.0.1:{manager_port}",
        "127.0.0.1:5001": f"127.0.0.1:{webhook_port}",
    }
    places |= {f"127.0.0.1:81{i}2": fleet.server_url(i, "metrics") for i in range(2)}
    places |= {f"127.0.0.1:81{i}3": fleet.server_url(i, "supervisor") for i in range(2)}
    for path in [*(ROOT / "prometheus").glob("*.yml"), ROOT / "prometheus" / "servers.json"]:
        text = re.sub(r"(interval|group_wait): \d+[sm]\b", r"\1: 1s", path.read_text())
        for old, new in places.items():
            text = text.replace(old, new)
        (folder / path.name).write_text(text)
    commands = [
        ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"],
        ["prometheus-alertmanager", "--config.file=alertmanager.yml", "--storage.path=am", "--cluster.listen-address="],
    ]
    ports = (prometheus_port, manager_port)
    with webhook(webhook_port, alerts):
        started = [
            subprocess.Popen(
                [*command, f"--web.listen-address=127.0.0.1:{port}"],
                cwd=folder,
                env={**os.environ, "GOMAXPROCS": "1"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for command, port in zip(commands, ports, strict=True)
        ]
        try:
            yield Monitoring(f"http://127.0.0.1:{prometheus_port}", alerts)
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(20)


@contextmanager
def webhook(port: int, alerts: list[dict[str, Any]]) -> Iterator[None]:

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            alerts.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with running(ThreadingHTTPServer(("127.0.0.1", port), Handler)):
        yield
