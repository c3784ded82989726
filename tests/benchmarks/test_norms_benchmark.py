import json
from pathlib import Path

import pytest
from commands import failure, measured
from random_networks import saved

from benchmarks.measure import checkpoint_speeds, workload_settings
from benchmarks.presets.norms import norms, relative_to_layer_norm
from models.networks.config import ModelConfig, ModelName

ACCURACY: dict[ModelName, float] = {"vit": 0.99, "vit-dfn": 0.98, "vit-dtn": 0.97}


def studied(model: str, accuracy: float | None, training_s: float = 1.0) -> dict[str, object]:
    """A run as `vitbn study norms` writes it; without an accuracy it diverged at once."""
    series = [] if accuracy is None else [{"test_accuracy": accuracy, "training_time_s": training_s}]
    label = f"{model}-usual"
    return {"label": label, "at": {"way": "usual", "norm": model}, "options": {"seed": 0}, "series": series}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    runs = []
    for model, accuracy in ACCURACY.items():
        depth = 2 if model == "vit" else 1  # as other tests export
        config = ModelConfig(model=model, dim=16, depth=depth, heads=4, dim_head=16, mlp_dim=24)
        run = studied(model, accuracy, 1.0 if model == "vit" else 1.5)
        path = tmp_path / f"study/runs/{run['label']}.safetensors"
        saved(path, config, {"dataset": "mnist", "test_images": 10_000, "test_accuracy": accuracy})
        runs.append(run)
    runs += [studied("vit-repbn", 0.1), studied("vit-un", None)]  # their checkpoints are not opened
    (tmp_path / "study/norms.json").write_text(json.dumps({"runs": runs}))
    return tmp_path / "study"


@pytest.mark.slow
def test_a_short_run(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_settings, "MICRO_BATCHES", (128,))
    monkeypatch.setattr(checkpoint_speeds, "IMAGES", 500)
    printed, written = measured(norms, tmp_path / "out.json", study, "--seconds", 1)
    assert str(tmp_path) not in json.dumps(written)
    rows = {row["model"]: row for row in written["rows"]}
    assert {model: row["test_accuracy"] for model, row in rows.items()} == ACCURACY
    assert rows["vit"]["speedup_over_layer_norm"] == 1
    assert rows["vit-dfn"]["macs"] < rows["vit-dtn"]["macs"]  # its rows are cut
    assert all(row["max_abs_error"] < 1e-4 for row in rows.values())
    assert {model for model, row in rows.items() if row["folds"]} == {"vit-dfn"}
    assert "vit-dfn" in printed


def test_without_vit_no_speed_is_relative_to_it() -> None:
    row = {"model": "vitbn", "test_accuracy": 0.99, "macs": 1, "way": "", "images_per_s": 1.0, "p50_ms": 1.0}
    (derived,) = relative_to_layer_norm([row])
    assert derived["speedup_over_layer_norm"] is None


def test_a_study_in_which_no_network_learned_is_refused(study: Path, tmp_path: Path) -> None:
    (study / "norms.json").write_text(json.dumps({"runs": [studied("vit", 0.1)]}))
    expected = f"{study / 'norms.json'}: expected a network with an accuracy above 50 %, found none"
    assert failure(norms, study, "--json", tmp_path / "out.json") == (f"Error: {expected}", 1)
