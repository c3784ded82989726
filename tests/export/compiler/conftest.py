from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from foreign_networks import Encoder, export


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("foreign") / "encoder.onnx"
    onnx.save(export(Encoder()), path)
    return path
