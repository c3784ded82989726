"""deploy/ against schemas and linters, offline. Each check also refuses a planted mistake."""

import re
import subprocess
import sys
from copy import deepcopy
from importlib import metadata
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from serving.parse_triton_arguments import BY_PRIORITY

ROOT = Path(__file__).parents[2]
CONTAINER, KUBERNETES = ROOT / "deploy/container", ROOT / "deploy/kubernetes"
DOCKERFILE = (CONTAINER / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
RESOURCES = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
DOCUMENTS = [each for file in RESOURCES for each in yaml.safe_load_all((KUBERNETES / file).read_text())]
BY_KIND = {each["kind"]: each for each in DOCUMENTS if each["metadata"]["name"] == "vitbn"}
VERSIONS = ("1.32", "1.37")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_dockerfile_passes_hadolint(tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "hadolint"
    done = run(program, CONTAINER / "Dockerfile")
    assert done.returncode == 0, done.stdout
    (tmp_path / "Dockerfile").write_text(re.sub(r"^FROM python:\S+", "FROM python", DOCKERFILE, flags=re.MULTILINE))
    assert "DL3006" in run(program, tmp_path / "Dockerfile").stdout  # an image without a version


@pytest.mark.slow
def test_the_compose_file_fits_its_schema(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = run(*command, CONTAINER / "compose.yaml")
    assert done.returncode == 0, done.stdout
    wrong = (CONTAINER / "compose.yaml").read_text().replace("mem_limit", "memory_limit", 1)
    (tmp_path / "compose.yaml").write_text(wrong)
    assert run(*command, tmp_path / "compose.yaml").returncode != 0


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


def test_our_images_bear_the_version_of_the_package() -> None:
    files = (ROOT / "deploy/README.md", CONTAINER / "compose.yaml", KUBERNETES / "deployment.yaml")
    tags = [tag for file in files for tag in re.findall(r"vitbn-\w+:(\d\S*)", file.read_text())]
    assert tags == [metadata.version("vitbn")] * 5


def test_the_services_are_locked_and_bounded_and_open_loopback_only() -> None:
    targets = set(re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE))
    for name, service in COMPOSE["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "mem_limit" in service, name
        assert re.search(r":\S*\d", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert "build" not in service or service["build"]["target"] in targets, name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or source.startswith("../"), name


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: f"{each['kind']} {each['metadata']['name']}")
def test_every_manifest_fits_and_misspelt_does_not(document: dict[str, Any]) -> None:
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)
    for field in document["spec"]:
        wrong = deepcopy(document)
        wrong["spec"][f"{field}x"] = wrong["spec"].pop(field)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_every_container_is_locked_and_bounded() -> None:
    pod = BY_KIND["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        security, name = container["securityContext"], container["name"]
        assert security["readOnlyRootFilesystem"] is True, name
        assert security["allowPrivilegeEscalation"] is False, name
        assert security["capabilities"] == {"drop": ["ALL"]}, name
        assert {"cpu", "memory"} <= container["resources"]["limits"].keys(), name
        assert not container["image"].endswith(":latest"), name


def test_the_parts_know_each_other() -> None:
    spec = BY_KIND["Deployment"]["spec"]
    labels, pod = spec["template"]["metadata"]["labels"], spec["template"]["spec"]
    assert spec["selector"]["matchLabels"] == labels == BY_KIND["Service"]["spec"]["selector"]
    assert BY_KIND["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert BY_KIND["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "vitbn"
    ports = {each["name"] for container in pod["containers"] for each in container["ports"]}
    assert {each["targetPort"] for each in BY_KIND["Service"]["spec"]["ports"]} <= ports
    server = pod["containers"][0]
    assert BY_PRIORITY in server["args"], "a standby instance would take every second request"
    drain_s = server["lifecycle"]["preStop"]["sleep"]["seconds"]
    ends_s = next(int(each.partition("=")[2]) for each in server["args"] if each.startswith("--exit-timeout"))
    assert drain_s + ends_s < pod["terminationGracePeriodSeconds"]
