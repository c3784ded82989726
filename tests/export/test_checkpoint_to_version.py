import sys
from pathlib import Path

import pytest

from export import checkpoint_to_version
from export.checkpoint_to_onnx import Form
from export.checkpoint_to_version import Target, export_checkpoint, export_for
from export.errors import Unavailable
from export.publishing.build_config_pbtxt import Serving
from models.catalog import shipped

TINY = shipped("vitbn-tiny")


@pytest.mark.slow
def test_without_a_destination_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exported = export_checkpoint(TINY, Form("all"))
    assert list(tmp_path.iterdir()) == []
    assert exported.artifact.data == exported.onnx
    assert exported.work.macs > exported.steps[-1].macs > 0
    assert [each.stages for each in exported.comparisons] == ["rewritten, float64", "ONNX, float32"]
    assert exported.images.note is None


def test_openvino_that_is_not_installed_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.delattr(checkpoint_to_version, "load")
    with pytest.raises(Unavailable, match="OpenVINO is not installed"):
        export_for(Target(serving=Serving("openvino")), TINY, Form())
    assert list(tmp_path.iterdir()) == []
