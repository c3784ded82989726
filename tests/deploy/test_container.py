import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONTAINER = ROOT / "deploy/container"
DOCKERFILE = (CONTAINER / "Dockerfile").read_text()


def hadolint(path: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "hadolint"
    return subprocess.run([program, path], capture_output=True, text=True, timeout=60)


def compose(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", path]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_dockerfile_passes_hadolint(tmp_path: Path) -> None:
    done = hadolint(CONTAINER / "Dockerfile")
    assert done.returncode == 0, done.stdout
    (tmp_path / "Dockerfile").write_text(re.sub(r"^FROM python:\S+", "FROM python", DOCKERFILE, flags=re.MULTILINE))
    assert "DL3006" in hadolint(tmp_path / "Dockerfile").stdout  # an image without a version


@pytest.mark.slow
def test_the_compose_file_fits_its_schema(tmp_path: Path) -> None:
    done = compose(CONTAINER / "compose.yaml")
    assert done.returncode == 0, done.stdout
    wrong = (CONTAINER / "compose.yaml").read_text().replace("mem_limit", "memory_limit", 1)
    (tmp_path / "compose.yaml").write_text(wrong)
    assert compose(tmp_path / "compose.yaml").returncode != 0


def test_no_image_runs_as_root_and_every_copy_exists() -> None:
    stages = re.split(r"^(?=FROM )", DOCKERFILE, flags=re.MULTILINE)[1:]
    names = {match[1]: stage for stage in stages if (match := re.match(r"FROM \S+ AS (\S+)", stage))}
    assert "USER 1000:1000" in names["runtime"]
    for target in ("sidecar", "proxy", "client", "page", "publisher"):
        assert names[target].startswith("FROM runtime "), target
        assert "USER" not in names[target], target
        (source,) = re.findall(r"COPY --from=(\S+) /venv /venv", names[target])
        assert source in names, target
    ignored = (ROOT / ".dockerignore").read_text().split()
    for copied in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        assert all((ROOT / each).exists() and f"!{each}" in ignored for each in copied.split()), copied
    section = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
    extras = re.findall(r"^(\w+) = \[", section, re.MULTILINE)
    for named in re.findall(r"'\.\[([\w,]+)\]'", DOCKERFILE):
        assert set(named.split(",")) <= set(extras), named


def test_the_services_are_locked_and_bounded_and_open_loopback_only() -> None:
    content = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
    targets = set(re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE))
    assert content["services"].keys() == {"server", "probe", "envoy", "page", "prometheus", "grafana"}
    for name, service in content["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "mem_limit" in service, name
        assert re.search(r":\S*\d", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        if "build" in service:
            assert service["build"]["target"] in targets, name
            assert (CONTAINER / service["build"]["context"]).resolve() == ROOT, name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in content["volumes"] or source.startswith("../"), name
