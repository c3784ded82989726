"""Manifests fit Kubernetes' strict schemas, and KServe's kinds `KSERVE`.

KServe publishes its schemas only as large CRDs. `KSERVE` states the fields in use, from pkg/apis/serving/v1alpha1 and
v1beta1 of kserve/kserve; containers are checked as a pod's.
"""

from pathlib import Path
from typing import Any

import click
import jsonschema
import kubernetes_validate
import pytest
from documents import KUBERNETES, documents, misspelt, overlay

from serving.launcher import BY_PRIORITY
from vitbn import main as vitbn

VERSIONS = ("1.32", "1.37")
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": TEXT}
PROTOCOL = {"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]}
FORMAT = closed("name", name=TEXT, version=TEXT)
HEAD = {"apiVersion": TEXT, "kind": TEXT, "metadata": closed("name", name=TEXT, annotations=TEXTS)}
KSERVE = {
    "ServingRuntime": closed(
        "spec",
        **HEAD,
        spec=closed(
            "containers",
            supportedModelFormats={"type": "array", "items": FORMAT},
            protocolVersions={"type": "array", "items": PROTOCOL},
            annotations=TEXTS,
            containers={"type": "array", "minItems": 1},
        ),
    ),
    "InferenceService": closed(
        "spec",
        **HEAD,
        spec=closed(
            "predictor",
            predictor=closed(
                "model",
                minReplicas=COUNT,
                maxReplicas=COUNT,
                scaleMetric={"enum": ["cpu", "memory", "concurrency", "rps"]},
                scaleTarget=COUNT,
                model=closed(
                    "modelFormat",
                    runtime=TEXT,
                    modelFormat=FORMAT,
                    protocolVersion=PROTOCOL,
                    storageUri={"type": "string", "pattern": "^(s3|gs|pvc|https)://"},
                ),
            ),
        ),
    ),
    "Kustomization": closed(
        "resources",
        apiVersion={"const": "kustomize.config.k8s.io/v1beta1"},
        kind=TEXT,
        resources={"type": "array", "items": TEXT},
        patches={"type": "array", "items": closed("path", path=TEXT)},
    ),
}


def check(document: dict[str, Any], version: str = VERSIONS[-1]) -> None:
    if (schema := KSERVE.get(document["kind"])) is None:
        kubernetes_validate.validate(document, version, strict=True)
        return
    jsonschema.validate(document, schema)
    if document["kind"] == "ServingRuntime":
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
        containers = document["spec"]["containers"]
        kubernetes_validate.validate(pod | {"spec": {"containers": containers}}, version, strict=True)


REFUSALS = (kubernetes_validate.ValidationError, jsonschema.ValidationError)
WHOLE = [path for path in sorted(KUBERNETES.rglob("*.yaml")) if "overlays" not in path.parts or "kustom" in path.name]


@pytest.mark.slow
@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.relative_to(KUBERNETES).as_posix())
def test_every_file_fits_and_misspelt_does_not(path: Path) -> None:
    for document in documents(path):
        for version in VERSIONS:
            check(document, version)
        wrong = list(misspelt(document))
        assert wrong or document["kind"] == "Kustomization"
        for name, changed in wrong:
            assert refuses(changed), f"{name} misspelt is accepted"


def refuses(*several: dict[str, Any]) -> bool:
    try:
        for document in several:
            check(document)
    except REFUSALS:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", OVERLAYS)
def test_every_overlay_fits_and_misspelt_does_not(name: str) -> None:
    assert not refuses(*overlay(name))
    for path in (KUBERNETES / "overlays" / name).glob("[!k]*.yaml"):
        (patch,) = documents(path)
        for field, changed in misspelt({"spec": patch["spec"]}):
            merged = overlay(name, {path: patch | changed})
            assert refuses(*(each for each in merged if each["kind"] == patch["kind"])), f"{path}: {field} is accepted"


def test_kustomizations_list_what_is_there() -> None:
    for path in KUBERNETES.rglob("kustomization.yaml"):
        (content,) = documents(path)
        listed = [*content["resources"], *(each["path"] for each in content.get("patches", ()))]
        assert all((path.parent / each).exists() for each in listed), path
        others = {each.name for each in path.parent.glob("*.yaml")} - {"kustomization.yaml"}
        assert others == {each for each in listed if each.endswith(".yaml")}, path


def containers() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(file, pod, container) of every manifest with pods."""
    found = []
    for path in sorted(KUBERNETES.rglob("*.yaml")):
        for document in documents(path):
            if "overlays" not in path.parts and "template" in document.get("spec", {}):
                pod = document["spec"]["template"]["spec"]
                found += [(path.name, pod, each) for each in pod["containers"]]
    assert len(found) >= 4
    return found


def test_every_container_is_locked_and_bounded() -> None:
    for name, pod, container in containers():
        security = container["securityContext"]
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert security["readOnlyRootFilesystem"] is True, name
        assert security["allowPrivilegeEscalation"] is False, name
        assert security["capabilities"] == {"drop": ["ALL"]}, name
        assert {"cpu", "memory"} <= container["resources"]["limits"].keys(), name
        assert not container["image"].endswith(":latest"), name
        assert (
            {each["name"] for each in container["volumeMounts"]} <= {each["name"] for each in pod["volumes"]}
            if ("volumeMounts" in container)
            else True
        ), name


def test_our_commands_parse() -> None:
    ours = [(name, each["args"]) for name, _, each in containers() if each["image"].startswith("vitbn")]
    assert len(ours) == 3
    for name, args in ours:
        words = [word.replace("$(JOB_COMPLETION_INDEX)", "3") for word in args]
        command: click.Command | None = vitbn
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, name
        _, left, _ = command.make_parser(click.Context(command)).parse_args(words)
        assert not left, name


def test_the_parts_know_each_other() -> None:
    base = {each["kind"]: each for each in overlay("cpu") if each["metadata"]["name"] == "vitbn"}
    labels = base["Deployment"]["spec"]["template"]["metadata"]["labels"]
    pod = base["Deployment"]["spec"]["template"]["spec"]
    assert base["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert base["Service"]["spec"]["selector"] == labels
    assert base["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert base["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert base["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == base["Deployment"]["metadata"]["name"]
    ports = {each["name"] for container in pod["containers"] for each in container["ports"]}
    assert {each["targetPort"] for each in base["Service"]["spec"]["ports"]} <= ports
    (claim,) = documents(KUBERNETES / "base/persistentvolumeclaim.yaml")
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    server = pod["containers"][0]
    assert BY_PRIORITY in server["args"], "a standby instance would take every second request"
    drain_s = server["lifecycle"]["preStop"]["sleep"]["seconds"]
    ends_s = next(int(each.partition("=")[2]) for each in server["args"] if each.startswith("--exit-timeout"))
    assert drain_s + ends_s < pod["terminationGracePeriodSeconds"]


def test_a_gpu_is_asked_for_in_its_overlay_alone() -> None:
    asked = {name: "nvidia.com/gpu" in str(overlay(name)) for name in OVERLAYS}
    assert asked == {"cpu": False, "gpu": True, "object-storage": False}
    patched = next(each for each in overlay("object-storage") if each["kind"] == "Deployment")
    assert "persistentVolumeClaim" not in patched["spec"]["template"]["spec"]["volumes"][0]
    assert len(patched["spec"]["template"]["spec"]["containers"]) == 2
