from pathlib import Path

import pytest
from commands import measured

from benchmarks.measure.measured_network import shipped_network
from benchmarks.presets import operators as module
from benchmarks.presets.operators import flops, group_nodes, node_rows, profile_graph
from export.checkpoint_to_onnx import Form
from export.checkpoint_to_version import export_checkpoint


def event(name: str, operator: str, us: int, inputs: list[list[int]], output: list[int]) -> dict[str, object]:
    shapes = {"input_type_shape": [{"float": shape} for shape in inputs], "output_type_shape": [{"float": output}]}
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": us, "args": {"op_name": operator, **shapes}}


@pytest.mark.parametrize(
    ("operator", "inputs", "output", "expected"),
    [
        ("MatMul", [[8, 17, 64]], [8, 17, 512], 2 * 8 * 17 * 512 * 64),
        ("MatMul", [[8, 17, 64], [64, 512]], [8, 17, 512], 2 * 8 * 17 * 512 * 64),
        ("FusedMatMul", [[8, 64, 17], [8, 64, 32]], [8, 17, 32], 2 * 8 * 17 * 32 * 64),  # left transposed
        ("MatMul", [[1, 8, 64], [32, 64, 17]], [32, 8, 17], 2 * 32 * 8 * 17 * 64),
        ("Gemm", [[8, 64], [10, 64], [10]], [8, 10], 2 * 8 * 10 * 64),
        ("Conv", [[8, 1, 28, 28], [64, 1, 7, 7], [64]], [8, 64, 4, 4], 2 * 8 * 64 * 16 * 49),
        ("Softmax", [[8, 17, 17]], [8, 17, 17], None),
    ],
)
def test_flops_of_products_and_convolutions(
    operator: str, inputs: list[list[int]], output: list[int], expected: int | None
) -> None:
    assert flops(operator, inputs, output) == expected


def test_a_node_has_the_median_of_the_last_calls() -> None:
    events = [event("a", "MatMul", us, [[2, 4]], [2, 3]) for us in (1000, 10, 30, 20)]  # the first is the warm-up
    events += [{"cat": "Session", "name": "model_run", "dur": 99}, event("b", "Gelu", 40, [[2, 3]], [2, 3])]
    first, second = node_rows(events, 3)
    assert first == {"node": "a", "operator": "MatMul", "shapes": "2x4 → 2x3", "p50_us": 20, "flops": 48}
    assert second["flops"] is None


@pytest.mark.parametrize("untimed", [[], [70]], ids=["slow", "quick"])
def test_only_timed_calls_count(untimed: list[int]) -> None:
    took_us = [99, *untimed, 10, *untimed, 20, *untimed, 30]
    (node,) = node_rows([event("a", "MatMul", us, [[2, 4]], [2, 3]) for us in took_us], 3)
    assert node["p50_us"] == 20


def test_nodes_of_an_operator_share_a_row() -> None:
    events = [event(name, "MatMul", 10, [[2, 4]], [2, 3]) for name in ("a", "b")] + [event("c", "Gelu", 60, [[2]], [2])]
    gelu, product = group_nodes(list(node_rows(events, 1)), ["operator"])
    assert (gelu["operator"], gelu["share"], gelu["gflops_per_s"]) == ("Gelu", 0.75, None)
    assert (product["count"], product["p50_us"], product["gflops_per_s"]) == (2, 20, 2 * 48 / 20 / 1000)


@pytest.mark.slow
def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 4)
    monkeypatch.setattr(module, "CALLS", 3)
    _, written = measured(module.operators, tmp_path / "operators.json", "--model", "vitbn-tiny")
    plain, rewritten = ([row for row in written["rows"] if row["rewrites"] == name] for name in ("plain", "all"))
    for rows in (plain, rewritten):
        for kind in (False, True):
            assert sum(row["share"] for row in rows if ("shapes" in row) == kind) == pytest.approx(1)
        assert rows[0]["nodes_p50_ms"] == pytest.approx(sum(row["p50_us"] for row in rows if "shapes" in row) / 1000)
    assert any(row["operator"] == "BatchNormalization" for row in plain)
    assert not any(row["operator"] == "BatchNormalization" for row in rewritten)


@pytest.mark.slow
def test_the_operations_are_those_that_the_exporter_counts() -> None:
    network = shipped_network("vitbn-tiny")
    images = network.examples(4)
    macs = []
    for rewritten in (False, True):
        data = export_checkpoint(network.path, Form(rewrites="all" if rewritten else "none")).onnx
        macs.append(sum(node["flops"] or 0 for node in profile_graph(data, images, 3, 1)["nodes"]) / 2 / 4)
    assert macs == pytest.approx([2_853_504, 63_360], rel=0.02)
