"""The published layout of BatchNorm gives the same network, and its times are recorded."""

import json

import pytest
import torch

from benchmarks.studies import batch_norm_layout_timing
from benchmarks.studies.study_writer import StudyError
from models.data import load_dataset
from models.networks.config import ModelConfig
from models.networks.registry import build, randomise_norms


@pytest.mark.parametrize("model", ["vitbnffn", "vitbn"])
def test_both_layouts_compute_the_same(model):
    ours = build(ModelConfig(model=model, depth=2)).double()
    randomise_norms(ours)
    published = batch_norm_layout_timing.transposed(ours)
    assert any(isinstance(module, torch.nn.BatchNorm2d) for module in published.modules())
    images = torch.rand(3, 1, 28, 28, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for mode in (True, False):
        torch.testing.assert_close(published.train(mode)(images), ours.train(mode)(images), rtol=0, atol=1e-10)


def test_another_layout_that_computes_something_else_is_refused():
    ours = build(ModelConfig(depth=1))
    wrong = batch_norm_layout_timing.transposed(ours)
    last = [module for module in wrong.modules() if isinstance(module, torch.nn.BatchNorm2d)][-1]
    torch.nn.init.constant_(last.bias, 0.1)
    with pytest.raises(StudyError, match=r"vitbn, both layouts: expected an error of at most 1.0e-04 of the largest"):
        batch_norm_layout_timing.check("vitbn", ours, wrong, torch.rand(4, 1, 28, 28))


def test_a_run_for_each_network_and_layout(tmp_path, monkeypatch):
    for name, value in (("DEPTHS", (2, 1)), ("STEPS", 1), ("BATCH", 20), ("TEST_BATCH", 40)):
        monkeypatch.setattr(batch_norm_layout_timing, name, value)
    runs = batch_norm_layout_timing.measure(load_dataset("digits"), rounds=2)
    described = [(run["config"]["model"], run["config"]["depth"], len(run["series"])) for run in runs]
    models = ["vit", "vitbnffn", "vitbnffn-transposed", "vitbn", "vitbn-transposed"]
    assert described == [(model, depth, 2) for depth in (2, 1) for model in models]
    paths = batch_norm_layout_timing.write(tmp_path, runs, "command")
    stored = json.loads((tmp_path / "layout.json").read_text())
    assert tmp_path / "layout.json" in paths
    assert stored["scope"]["size"] == "2 rounds of 1 steps of 20 and a test of 40"
    assert all(time > 0 for run in stored["runs"] for epoch in run["series"] for time in epoch.values())
