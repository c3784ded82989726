from collections import Counter
from pathlib import Path

import pytest
from networks import FOLD, rewritten

from export.graph import Form, export
from models.checkpoint import load
from models.config import ModelConfig


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "depth"), [*((model, 1) for model in FOLD), ("vit", 2), ("vitbnffn", 2), ("vitbn", 2)]
)
def test_nodes_of_the_rewritten_graph(model: str, depth: int) -> None:
    graph = rewritten(ModelConfig(model=model, depth=depth), Form("all")).graph
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
@pytest.mark.parametrize(("depth", "additions"), [(1, 4), (2, 8)])
def test_additions_that_are_left_of_vitbn(depth: int, additions: int) -> None:
    """Positions, then per block two residuals and two FFN biases; one block adds scores of positions instead."""
    graph = rewritten(ModelConfig(depth=depth), Form("all")).graph
    assert sum(node.op_type == "Add" for node in graph.node) == additions


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 6])
def test_the_published_checkpoint_survives_all_rewrites(reference_dir: Path, depth: int) -> None:
    if depth == 6:
        with pytest.warns(UserWarning, match="never saw a batch"):
            checkpoint = load(reference_dir / "vitbn.pth", depth)
    else:
        checkpoint = load(reference_dir / "vitbn.pth", depth)
    double, single = export(checkpoint, Form("all")).comparisons
    assert double.max_abs_error < 1e-10
    assert single.max_abs_error < 1e-4
