"""Manifests that the commit d6c2e41 wrote, before their fields had types, and that published repositories hold."""

import json
from pathlib import Path

import pytest
from operating import ok

from export.publishing.manifest import Plan, Profile, read_manifest
from models.networks.config import ModelConfig

PUBLISHED = Path(__file__).parent / "published"


@pytest.mark.parametrize("name", ["vitbn", "int8", "plan", "foreign"])
def test_an_older_manifest_keeps_every_field(name: str) -> None:
    path = PUBLISHED / f"{name}.json"
    held, written = json.loads(path.read_text()), json.loads(read_manifest(path).to_json())
    config = held.pop("model_config", {}).items()
    assert config <= written.pop("model_config", {}).items(), "later fields have their defaults"
    assert written == {"precision": "fp32"} | held, "float32 was not named"


def test_the_fields_of_an_older_manifest_are_typed() -> None:
    origin = read_manifest(PUBLISHED / "int8.json").origin
    assert (origin.precision, origin.test_accuracy, origin.accuracy) == ("int8", 0.9854, 0.9854)
    assert origin.facts.keys() == {
        *("opset", "proved_on", "checkpoint", "torch", "calibration_error", "float32_test_accuracy")
    }
    assert origin.network is not None
    assert origin.network.config == ModelConfig(depth=1)
    assert (origin.network.tolerance, origin.network.temperature) == (1e-4, 1.0111)
    plan = read_manifest(PUBLISHED / "plan.json").origin.engine
    assert isinstance(plan, Plan)
    assert plan.profile == Profile(1, 64, 256)
    assert read_manifest(PUBLISHED / "foreign.json").origin.network is None
    assert read_manifest(PUBLISHED / "vitbn.json").origin.accuracy == 0.9954, "the checkpoint's"


def test_versions_with_older_manifests_are_served_verified_and_promoted(folder: Path) -> None:
    for path in folder.glob("vitbn/?/manifest.json"):
        held = json.loads(path.read_text())
        assert held.pop("precision") == "fp32"
        path.write_text(json.dumps(held))
    listed = ok(folder, "list")
    assert ok(folder, "verify").count("  ok\n") == 3
    ok(folder, "rollback", "vitbn")
    assert "version 3 is the default" in ok(folder, "promote", "vitbn", "3")
    assert ok(folder, "list") == listed
