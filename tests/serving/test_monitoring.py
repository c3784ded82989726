"""deploy/prometheus against the real promtool; test_fleet.py has Prometheus and Alertmanager."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from monitoring import ROOT, needs

ALERTS = re.findall(r"- alert: (\w+)", (ROOT / "prometheus/alerts.yml").read_text())


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
