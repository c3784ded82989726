import pickle
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.measure.candidate import Candidate, Classify, Runtime, Sizes
from benchmarks.measure.engines import OPTIMISED, RUNTIMES, candidates, why_not
from benchmarks.measure.first_calls import build
from benchmarks.measure.measured_network import Network, shipped_network
from benchmarks.measure.reference import make_reference
from export.errors import Unavailable
from export.precision_table import PRECISIONS
from models.catalog import shipped
from models.checkpoints.checkpoint import read_config
from models.networks.config import ModelConfig

SMALL = Network("vitbn", ModelConfig(depth=2, dim=16, heads=4, dim_head=16, mlp_dim=24))


def test_a_new_engine_is_a_function_a_row_and_its_name_in_its_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(data: bytes, candidate: Candidate, sizes: Sizes) -> Classify:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(data)
        return lambda images: evaluator.run(None, {"image": images})[0]

    kind: Any = "evaluator"
    table: Any = PRECISIONS
    monkeypatch.setitem(table, "fp32", replace(PRECISIONS["fp32"], cpu=(kind,)))
    runtime = Runtime("evaluator", "ONNX's evaluator, all rewrites", kind, evaluate, "all")
    monkeypatch.setitem(RUNTIMES, "evaluator", runtime)
    (candidate,) = candidates([SMALL], ["evaluator"], ["fp32"], 1, "cpu")
    assert candidate.name == "vitbn evaluator fp32"
    reference = make_reference(SMALL)
    logits = build(reference, candidate, (7,)).run(reference.proof_images[:7].copy())
    assert reference.check(candidate.name, "fp32", 7, logits) < 1e-4
    assert why_not(Candidate(SMALL, runtime, "bf16")) == "ONNX's evaluator on cpu is measured only in fp32"


def test_a_name_stands_for_the_shipped_network() -> None:
    tiny = Candidate(shipped_network("vitbn-tiny"), OPTIMISED)
    assert tiny.config == read_config(shipped("vitbn-tiny")) != ModelConfig()
    assert pickle.loads(pickle.dumps(tiny)) == tiny


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (Candidate(SMALL, RUNTIMES["tensorrt"]), "TensorRT needs another device than cpu"),
        (Candidate(SMALL, OPTIMISED, precision="fp16"), "ONNX Runtime on cpu is measured only in fp32, in"),
        (Candidate(Network("cnn", ModelConfig(model="cnn")), RUNTIMES["torch-sdpa"]), "the network has no attention"),
    ],
)
def test_a_candidate_that_cannot_be_measured_is_refused_before_it_is_built(candidate: Candidate, reason: str) -> None:
    with pytest.raises(Unavailable, match=reason):
        build(make_reference(candidate.network), candidate)
