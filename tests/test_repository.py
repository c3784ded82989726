"""The model repository on disk, as all readers of it see it."""

from __future__ import annotations

import json
import locale
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from clients.bulk.network import find_model
from common.files import sha256
from common.repository import (
    Damaged,
    check_hash,
    labels_text,
    model_dir,
    read_config,
    read_labels,
    read_manifest,
    read_version_files,
    served_versions,
    versions,
    wanted_versions,
)
from common.sample import Sample
from serving.intact_versions import plan

POLICIES = [
    ("", [3], [3]),
    ("version_policy { latest { } }", [3], [3]),
    ("version_policy { latest { num_versions: 2 } }", [2, 3], [2, 3]),
    ("version_policy { all { } }", [1, 2, 3], [1, 2, 3]),
    ("version_policy { specific { versions: [2, 1] } }", [1, 2], [1, 2]),
    ("version_policy { specific { versions: [2, 9] } }", [2, 9], [2]),
]


def model(repository: Path, policy: str = "") -> Path:
    folder = repository / "linear"
    for name in ("1", "2", "3", "04", "0", "20261123170000123456", "warmup"):
        (folder / name).mkdir(parents=True)
        (folder / name / "model.onnx").write_bytes(name.encode())
        manifest = {"file": "model.onnx", "files": {"model.onnx": sha256(name.encode())}}
        (folder / name / "manifest.json").write_text(json.dumps(manifest))
    (folder / "5").write_text("a file is no version")
    (folder / "config.pbtxt").write_text(f'name: "linear" input {{ }} output {{ }} {policy}')
    return folder


@pytest.mark.parametrize(("policy", "wanted", "served"), POLICIES)
def test_all_readers_serve_the_same_versions(
    tmp_path: Path, policy: str, wanted: Sequence[int], served: Sequence[int]
) -> None:
    folder = model(tmp_path, policy)
    config, present = read_config(folder / "config.pbtxt"), versions(folder)
    assert present == [1, 2, 3]
    assert (wanted_versions(config, present), served_versions(config, present[::-1])) == (wanted, served)
    assert find_model(folder).version == str(served[-1])
    if wanted == served:  # a supervisor replaces a version that is gone
        assert plan(folder).versions == tuple(served)


@pytest.fixture
def ascii_locale() -> Iterator[None]:
    """The locale C. In this locale Python reads text as ASCII, unless its UTF-8 mode is on."""
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    yield
    locale.setlocale(locale.LC_CTYPE, before)


@pytest.mark.usefixtures("ascii_locale")
def test_the_files_are_utf_8_in_every_locale(tmp_path: Path) -> None:
    label = "caffè 日本"
    (tmp_path / "labels.txt").write_bytes(labels_text([label]).encode())
    (tmp_path / "config.pbtxt").write_bytes(f'name: "{label}"'.encode())
    manifest = {"file": "x", "files": {"x": "0"}, "about": label}
    (tmp_path / "manifest.json").write_bytes(json.dumps(manifest, ensure_ascii=False).encode())
    assert read_labels(tmp_path) == (label,)
    assert read_config(tmp_path / "config.pbtxt").name == label
    assert read_manifest(tmp_path / "manifest.json") == manifest


@pytest.mark.parametrize(
    ("manifest", "found"),
    [
        ({"files": {}}, "no 'file'"),
        ({"file": "model.onnx", "files": {}}, "no 'model.onnx'"),
        ({"file": "../x", "files": {"../x": "0"}}, r"files '\.\./x': '0'"),
        ({"file": "/x", "files": {"/x": "0"}}, "files '/x': '0'"),
        ({"file": "x", "files": {"x": 0}}, "files 'x': 0"),
        ({"file": "x", "files": {"x": "0"}, "model_config": {}}, "no 'labels'"),
        (["x"], "no JSON object"),
    ],
    ids=str,
)
def test_a_manifest_that_names_no_files_is_refused(tmp_path: Path, manifest: object, found: str) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(Damaged, match=f"manifest.json: expected the manifest of an export, found {found}"):
        read_version_files(tmp_path)


def test_another_byte_and_a_missing_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"model")
    check_hash(path, expected := sha256(b"model"), "the model")
    path.write_bytes(b"modal")
    with pytest.raises(Damaged, match=f"model.onnx: expected the SHA-256 {expected}, found {sha256(b'modal')}"):
        check_hash(path, expected, "the model")
    path.unlink()
    with pytest.raises(Damaged, match=r"model.onnx: expected the model, found No such file"):
        check_hash(path, expected, "the model")


def test_the_first_repository_wins(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    (second / "m").mkdir(parents=True)
    assert model_dir((first, second), "m") == second / "m"
    (first / "m").mkdir(parents=True)
    assert model_dir((first, second), "m") == first / "m"
    assert model_dir((first, second), "n") is None


def test_a_sample_is_read_as_it_was_written(tmp_path: Path) -> None:
    sample = Sample({"x": np.arange(3)}, {"in:x": np.array([np.nan], np.float32)})
    (tmp_path / "sample.npz").write_bytes(sample.to_bytes())
    read = Sample.read(tmp_path / "sample.npz")
    np.testing.assert_equal(vars(read), vars(sample))
    (tmp_path / "sample.npz").write_bytes(sample.to_bytes()[:-9])
    with pytest.raises(Damaged, match=r"sample.npz: expected the sample of a model, found"):
        Sample.read(tmp_path / "sample.npz")
