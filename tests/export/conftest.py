import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from export.publishing.artifact import read_version
from export.publishing.publish import publish
from export.publishing.sidecar import write_with_sidecars


@pytest.fixture(scope="session")
def three_versions(repository: Path, made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    def make(path: Path) -> None:
        for _ in range(3):
            publish(path, "vitbn", read_version(repository / "vitbn" / "1"))

    return made_once("three versions", make)


@pytest.fixture
def folder(three_versions: Path, tmp_path: Path) -> Path:
    """Versions 1, 2 and 3 of `vitbn`; 2 and 3 are served."""
    return Path(shutil.copytree(three_versions, tmp_path / "repository"))


@pytest.fixture
def exported(folder: Path, tmp_path: Path) -> Path:
    write_with_sidecars(tmp_path / "vitbn.onnx", read_version(folder / "vitbn" / "1"))
    return tmp_path / "vitbn.onnx"
