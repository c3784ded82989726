import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from operating import error, ok, operate

from export import equivalence
from export.publishing.artifact import PublishError, read_version
from export.publishing.promote import served
from export.publishing.publish import versions
from export.publishing.verify import check_answer, verify_version


def test_verify(folder: Path) -> None:
    assert ok(folder, "verify").count("  ok\n") == 3


def _cut(version: Path) -> None:
    (version / "model.onnx").write_bytes((version / "model.onnx").read_bytes()[:-100])


def _manifest(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def damage(version: Path) -> None:
        manifest = json.loads((version / "manifest.json").read_text())
        change(manifest)
        (version / "manifest.json").write_text(json.dumps(manifest))

    return damage


def _republish(data: bytes) -> Callable[[Path], None]:

    def damage(version: Path) -> None:
        artifact = replace(read_version(version), data=data)
        (version / "model.onnx").write_bytes(artifact.data)
        (version / "manifest.json").write_bytes(artifact.manifest_json())

    return damage


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (_cut, "expected the SHA-256"),
        (lambda version: (version / "model.onnx").unlink(), "expected model.onnx, found No such file"),
        (lambda version: (version / "manifest.json").write_text("{"), "expected the manifest of an export"),
        (_manifest(lambda manifest: manifest.pop("sha256")), "found KeyError('sha256')"),
        (_manifest(lambda manifest: manifest.update(metrics=[])), "expected the manifest of an export"),
        (_manifest(lambda manifest: manifest.update(test_accuracy="high")), "expected the manifest of an export"),
        (_manifest(lambda manifest: manifest.update(max_abs_error=float("nan"))), "ValueError('max_abs_error nan')"),
        (_manifest(lambda manifest: manifest.pop("tolerance")), "found KeyError('tolerance')"),
        (_manifest(lambda manifest: manifest.update(file=5)), "found TypeError('file 5')"),
        (_manifest(lambda manifest: manifest.update(checkpoint_sha256=5)), "found TypeError('checkpoint_sha256 5')"),
        (_manifest(lambda manifest: manifest.update(rewrites=[1])), "found TypeError('rewrites [1]')"),
        (_manifest(lambda manifest: manifest.update(sample_logits=["1"])), "found TypeError(\"sample_logits ['1']\")"),
        (_manifest(lambda manifest: manifest.update(sample_logits=[0.0] * 10)), "found an error of"),
        (
            _manifest(lambda manifest: manifest.update(precision="int8", sample_logits=[float("nan")] * 10)),
            "expected finite logits of the sample",
        ),
        (_manifest(lambda manifest: manifest.update(sample_logits=[0.0] * 9)), "expected logits (1, 9)"),
        (_manifest(lambda manifest: manifest["model_config"].update(channels=3)), "publish it under another --name"),
        (_republish(b"no graph"), "expected a valid ONNX graph that runs"),
    ],
)
def test_verify_finds_what_is_wrong(folder: Path, damage: Callable[[Path], None], expected: str) -> None:
    damage(folder / "vitbn" / "2")
    result = operate(folder, "verify")
    assert result.exit_code == 1
    assert result.output.count("  ok\n") == 2
    assert expected in result.output
    assert ok(folder, "list").count("vitbn ") == 3
    assert result.output.splitlines()[-1].endswith("expected every version as published, found 1 wrong")
    assert verify_version(folder / "vitbn", 2).problem
    assert "Error: " in error(folder, "promote", "vitbn", "2")
    assert served(folder / "vitbn") == [2, 3]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("latest {\n    num_versions: 2\n  }", "specific {\n    versions: 7\n  }", "expected version 7"),
        ('name: "vitbn"', 'name: "vit"', "expected the name vitbn in config.pbtxt, found vit"),
        ("max_batch_size", "max_batches", "expected the config of a published model"),
    ],
)
def test_verify_finds_a_config_that_is_wrong(folder: Path, old: str, new: str, expected: str) -> None:
    path = folder / "vitbn" / "config.pbtxt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    result = operate(folder, "verify")
    assert result.exit_code == 1
    assert expected in result.output


def test_nan_is_no_class(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = read_version(folder / "vitbn" / "1")
    expected = [1.0] + [0.0] * 9  # the first NaN is argmax too
    half = replace(artifact, manifest=artifact.manifest | {"precision": "fp16", "sample_logits": expected})
    nan = lambda images: np.full((1, 10), np.nan, np.float32)  # noqa: E731
    monkeypatch.setattr(equivalence, "onnx_classifier", lambda data: nan)
    with pytest.raises(PublishError, match="expected finite logits of the sample, found an error of nan"):
        check_answer(folder / "vitbn/1/model.onnx", half)


def test_publish_of_a_file_that_is_damaged(folder: Path, exported: Path) -> None:
    exported.write_bytes(exported.read_bytes()[:-1])
    assert "expected the SHA-256" in error(folder, "publish", str(exported))
    exported.with_suffix(".json").unlink()
    assert "expected the manifest of an export" in error(folder, "publish", str(exported))
    assert versions(folder / "vitbn") == [1, 2, 3]
