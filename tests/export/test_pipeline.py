import sys
from pathlib import Path

import pytest

from export import pipeline
from export.errors import PublishError, Unavailable
from export.pipeline import ExportOptions, export_checkpoint, served_name
from models.catalog import shipped

TINY = shipped("vitbn-tiny")


@pytest.mark.slow
def test_without_a_destination_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    published = export_checkpoint(TINY, ExportOptions(rewrites="all"))
    assert published.path is None
    assert list(tmp_path.iterdir()) == []
    assert published.artifact.data == published.onnx
    assert published.macs > published.steps[-1].macs > 0
    assert [each.stages for each in published.comparisons] == ["rewritten, float64", "ONNX, float32"]
    assert published.note is None


def test_a_name_is_refused_before_anything_is_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pipeline, "load")
    with pytest.raises(PublishError, match=r"model name: expected letters, digits, _ and -, found "):
        ExportOptions(repository=tmp_path / "repository", name="../../evil")
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_is_not_the_default_has_a_name_of_its_own() -> None:
    assert served_name("vitbn", None) == served_name("vitbn", "onnxruntime") == "vitbn"
    assert served_name("vitbn", "openvino") == "vitbn_openvino"


def test_openvino_that_is_not_installed_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    options = ExportOptions(repository=tmp_path / "repository", backend="openvino")
    with pytest.raises(Unavailable, match="OpenVINO is not installed"):
        export_checkpoint(TINY, options)
    assert list(tmp_path.iterdir()) == []
