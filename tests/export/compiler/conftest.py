from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from foreign_networks import Encoder, export, parse


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("foreign") / "encoder.onnx"
    onnx.save(export(Encoder()), path)
    return path


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """Of at most 64 tokens; `--read` saves the work of all others."""
    network = parse(
        """<ir_version: 8, opset_import: ["": 17]> g (float[B, S, 16] a) => (float[B, S, 16] y) {
            s = Shape<start = 1, end = 2>(a) p = Slice(places, zero, s) x = Add(a, p)
            h = MatMul(x, w) t = Relu(h) y = MatMul(t, w) }""",
        places=np.ones((64, 16), np.float32),
        zero=np.zeros(1, np.int64),
        w=np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32),
    )
    ir.save(network, tmp_path / "tokens.onnx")
    return tmp_path / "tokens.onnx"
