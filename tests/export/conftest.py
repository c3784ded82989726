from pathlib import Path

import pytest

from export.publishing.artifact import read_version
from export.publishing.beside import write_beside
from export.publishing.publish import publish


@pytest.fixture
def folder(repository: Path, tmp_path: Path) -> Path:
    """Versions 1, 2 and 3 of `vitbn`; 2 and 3 are served."""
    for _ in range(3):
        publish(tmp_path / "repository", "vitbn", read_version(repository / "vitbn" / "1"))
    return tmp_path / "repository"


@pytest.fixture
def exported(folder: Path, tmp_path: Path) -> Path:
    write_beside(tmp_path / "vitbn.onnx", read_version(folder / "vitbn" / "1"))
    return tmp_path / "vitbn.onnx"
