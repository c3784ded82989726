from collections import Counter
from functools import cache
from pathlib import Path

import onnx
import pytest
from networks import FOLD, network

from export.graph import Exported, export
from export.rewrites.pipeline import ALL, FUSE
from models.checkpoint import Checkpoint, load
from models.config import ModelConfig


@cache
def optimized(config: ModelConfig) -> Exported:
    model = network(config).float()
    return export(Checkpoint(Path("random.safetensors"), model, config, "0" * 64), ALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "depth"), [*((model, 1) for model in FOLD), ("vit", 2), ("vitbnffn", 2), ("vitbn", 2)]
)
def test_nodes_of_the_optimized_graph(model: str, depth: int) -> None:
    graph = onnx.load_from_string(optimized(ModelConfig(model=model, depth=depth)).onnx).graph
    counts = Counter(node.op_type for node in graph.node)
    assert counts["BatchNormalization"] == counts["Split"] == counts["Einsum"] == 0
    assert counts["Transpose"] == 1 + depth  # the patches, and the tokens of each block
    assert counts["Cast"] == 1
    # Around the patch embedding, before attention and FFN, at the end; ViTBNFFN has none before its FFN.
    assert counts["LayerNormalization"] == {"vit": 3 + 2 * depth, "vitbnffn": 3 + depth}.get(model, 0)
    constants = {tensor.name for tensor in graph.initializer}
    assert not [node.op_type for node in graph.node if set(node.input) <= constants]
    assert counts["Shape"] == counts["Concat"] == counts["Expand"] == counts["Constant"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "additions"), [(1, 3), (2, 8)])
def test_additions_that_are_left_of_vitbn(depth: int, additions: int) -> None:
    """Positions, then per block two residuals and two FFN biases; the head's bias takes up the last."""
    graph = onnx.load_from_string(optimized(ModelConfig(depth=depth)).onnx).graph
    assert sum(node.op_type == "Add" for node in graph.node) == additions


@pytest.mark.slow
@pytest.mark.parametrize("model", ["vit", "vitbnffn", "vitbn"])
@pytest.mark.parametrize("bias", [False, True])
def test_fused_graphs_of_a_model_with_and_without_bias(model: str, bias: bool) -> None:
    config = ModelConfig(model=model, depth=1, qkv_bias=bias)
    exported = export(Checkpoint(Path("x"), network(config).float(), config, "0"), FUSE)
    assert "carry_biases" in exported.artifact.origin.rewrites


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 6])
def test_the_published_checkpoint_survives_all_rewrites(reference_dir: Path, depth: int) -> None:
    if depth == 6:
        with pytest.warns(UserWarning, match="never saw a batch"):
            checkpoint = load(reference_dir / "vitbn.pth", depth)
    else:
        checkpoint = load(reference_dir / "vitbn.pth", depth)
    exported = export(checkpoint, ALL)
    assert exported.comparisons[0].max_abs_error < 1e-10
    assert exported.comparisons[1].max_abs_error < 1e-4
