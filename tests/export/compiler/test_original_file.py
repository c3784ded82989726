"""A file that is rewritten or compared is opened once in ONNX Runtime, whoever asks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from foreign_networks import export
from masked_networks import Masked

from export import rewrite_file as module
from export.compare_files import compare_files
from export.compiler.errors import BadRequest
from export.compiler.proof import runner
from export.rewrite_file import Request, rewrite_file


@pytest.mark.slow
def test_a_file_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its proof opened it a second time behind the question which axes are the mask's under another name."""
    proto = export(Masked("absolute", "mean", 1))
    for axis, name in enumerate(("texts", "tokens")):
        proto.graph.input[1].type.tensor_type.shape.dim[axis].dim_param = name
    onnx.save(proto, path := tmp_path / "apart.onnx")
    opened, session = list[Path](), runner.session

    def counted(file: Path, *given: Any, **named: Any) -> Any:
        opened.append(file)
        return session(file, *given, **named)

    monkeypatch.setattr(runner, "session", counted)
    rewrite_file(path, out := tmp_path / "out.onnx", Request(packed="attention_mask"))
    assert opened.count(path) == 1
    opened.clear()
    monkeypatch.setattr("export.compare_files.time_both", lambda *given: ())  # opens both anew, to be timed
    assert compare_files(path, out, Request(packed="attention_mask")).proof
    assert sorted(opened) == [path, out]


@pytest.mark.parametrize("place", ["session", "sha256"])
def test_a_file_that_changes_meanwhile_is_named(
    place: str, tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest named the hash of the new file, though the old one was rewritten."""
    new = onnx.load(tokens)
    new.producer_name = "another"
    where = runner if place == "session" else module
    real = getattr(where, place)

    def replacing(file: Path, *given: Any, **named: Any) -> Any:
        if file == tokens:
            onnx.save(new, tmp_path / "new.onnx")
            (tmp_path / "new.onnx").replace(tokens)
        return real(file, *given, **named)

    monkeypatch.setattr(where, place, replacing)
    with pytest.raises(BadRequest, match="expected a file that stays as it is, found that it changed"):
        rewrite_file(tokens, tmp_path / "out.onnx", Request(("y[:,0]",)))
    assert not (tmp_path / "out.onnx").exists()
