import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from artifacts import artifact_of
from operating import error, ok, operate

from common.files import sha256
from common.repository import versions
from common.sample import Sample
from export.errors import PublishError
from export.publishing.artifact import Artifact, read_version
from export.publishing.promote import served
from export.publishing.publish import publish
from export.publishing.sidecar import read_with_sidecars
from export.publishing.verify import verify_version
from export.sample_images import embedded_sample
from models.networks.config import ModelConfig


def _cut(version: Path) -> None:
    (version / "model.onnx").write_bytes((version / "model.onnx").read_bytes()[:-100])


def _manifest(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def damage(version: Path) -> None:
        manifest = json.loads((version / "manifest.json").read_text())
        change(manifest)
        (version / "manifest.json").write_text(json.dumps(manifest))

    return damage


def _republish(data: bytes | None = None, sample: Sample | None = None, **fields: object) -> Callable[[Path], None]:
    """With another file or sample, whose hashes are right."""

    def damage(version: Path) -> None:
        artifact = read_version(version)
        contents = {"model.onnx": data or artifact.data, "sample.npz": (sample or artifact.sample).to_bytes()}
        hashes = {place: sha256(content) for place, content in contents.items()}
        for place, content in contents.items():
            (version / place).write_bytes(content)
        manifest = replace(artifact.manifest, files=hashes, **fields)
        (version / "manifest.json").write_bytes(manifest.to_json())

    return damage


def _sample(logits: list[float]) -> Sample:
    images = embedded_sample(ModelConfig()).images[:1]
    return Sample({"image": images}, {"logits": np.array([logits], np.float32)})


CLASS_ALONE = {"logits": None}
CONFIG = "config.pbtxt"


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (_cut, "expected the SHA-256"),
        (lambda version: (version / "model.onnx").unlink(), "expected model.onnx, found No such file"),
        (lambda version: (version / "sample.npz").unlink(), "expected sample.npz, found No such file"),
        (lambda version: (version / "sample.npz").write_bytes(b"PK"), "sample.npz: expected the SHA-256"),
        (lambda version: (version / "manifest.json").write_text("{"), "expected the manifest of an export"),
        (_manifest(lambda manifest: manifest.pop("files")), "found no 'files'"),
        (_manifest(lambda manifest: manifest.update(metrics=[])), "expected the manifest of an export"),
        (_manifest(lambda manifest: manifest.update(test_accuracy="high")), "expected the manifest of an export"),
        (_manifest(lambda manifest: manifest.update(max_abs_error=float("nan"))), "found max_abs_error nan"),
        (_manifest(lambda manifest: manifest.pop("tolerance")), "found no 'tolerance'"),
        (_manifest(lambda manifest: manifest.pop("checkpoint_sha256")), "found no 'checkpoint_sha256'"),
        (_manifest(lambda manifest: manifest["model_config"].update(depth=0)), "expected the manifest of an export"),
        (_manifest(lambda manifest: manifest.update(file=5)), "found file 5"),
        (_manifest(lambda manifest: manifest.update(checkpoint_sha256=5)), "found checkpoint_sha256 5"),
        (_manifest(lambda manifest: manifest.update(rewrites=[1])), "found rewrites [1]"),
        (_manifest(lambda manifest: manifest["files"].pop("sample.npz")), "found no 'sample.npz'"),
        (
            _manifest(lambda manifest: manifest["files"].update({"../x": "0"})),
            "found files '../x': '0'",
        ),
        (_manifest(lambda manifest: manifest.update(sample_tolerance={})), "found no 'logits'"),
        (
            _manifest(lambda manifest: manifest.update(sample_tolerance={"logits": float("nan")})),
            "found sample_tolerance logits nan",
        ),
        (_republish(sample=_sample([0.0] * 10)), "expected the sample's answer to "),
        (_republish(sample=_sample([float("nan")] * 10), sample_tolerance=CLASS_ALONE), "expected finite numbers"),
        (_republish(sample=_sample([0.0] * 9 + [1e9]), sample_tolerance=CLASS_ALONE), "expected class [9]"),
        (_republish(sample=_sample([0.0] * 9)), "expected float32 (1, 9) for the sample, found float32 (1, 10)"),
        (_republish(sample=Sample({}, {})), "expected the file to run on its inputs, found"),
        (
            _manifest(lambda manifest: manifest["model_config"].update(channels=3)),
            "vitbn: expected a model for (3, 28, 28) images and classes 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, found (1, 28",
        ),
        (_republish(b"no graph"), "expected a file that ONNX Runtime runs, found"),
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
    ("file", "old", "new", "expected"),
    [
        (
            "config.pbtxt",
            "latest {\n    num_versions: 2\n  }",
            "specific {\n    versions: 7\n  }",
            "expected version 7",
        ),
        (CONFIG, 'name: "vitbn"', 'name: "vit"', "config.pbtxt: expected the name vitbn, found vit"),
        (CONFIG, "max_batch_size", "max_batches", "expected the config of a published model"),
        (CONFIG, 'key: "model_config"', 'key: "model_confih"', 'model_config: expected {"model": … found None: vitbn'),
        (CONFIG, '\\"patch_size\\"', '\\"patchsize\\"', "config.pbtxt: model_config: expected {"),
        ("labels.txt", "0\n1", "0\v1", "/labels.txt: expected the classes 0, 1, 2, … found 0\\x0b1, 2"),
        (
            "labels.txt",
            "9",
            "nine",
            "/labels.txt: expected the classes 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, found 0, 1,",
        ),
    ],
)
def test_verify_finds_a_config_or_labels_that_are_wrong(
    folder: Path, file: str, old: str, new: str, expected: str
) -> None:
    path = folder / "vitbn" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    result = operate(folder, "verify")
    assert result.exit_code == 1
    assert all(part in result.output for part in expected.split(" … "))
    assert "--name" not in result.output


@pytest.mark.parametrize("file", ["config.pbtxt", "labels.txt", "2/manifest.json", "2/model.onnx", "2/sample.npz"])
def test_verify_waits_for_no_pipe(folder: Path, file: str) -> None:
    path = folder / "vitbn" / file
    path.unlink()
    os.mkfifo(path)
    result = operate(folder, "verify")
    assert result.exit_code == 1
    assert f"{path}: expected " in result.output
    assert "found no regular file\n" in result.output


@pytest.mark.parametrize("name", ["01", "0", str(1 << 63)])
def test_verify_names_a_version_folder_that_servers_ignore(name: str, folder: Path) -> None:
    (folder / "vitbn" / "3").rename(folder / "vitbn" / name)
    shutil.copytree(folder / "vitbn" / name, folder / "vitbn" / "3")
    result = operate(folder, "verify")
    assert (result.exit_code, result.output.count("  ok\n")) == (1, 3)
    assert f"{folder / 'vitbn' / name}: expected a version number below 2^63 without leading zeros" in result.output
    assert result.output.splitlines()[-1].endswith("expected every version as published, found 1 wrong")


def test_verify_names_a_damaged_copy_of_the_config_which_a_supervisor_reads(folder: Path) -> None:
    (folder / "vitbn" / "2" / CONFIG).write_text("{")
    (folder / "vitbn" / "1" / CONFIG).unlink()
    (folder / "vitbn" / "3" / CONFIG).write_text("{")
    (folder / "vitbn" / "3" / "manifest.json").unlink()
    result = operate(folder, "verify")
    assert (result.exit_code, result.output.count("  ok\n")) == (1, 2)
    assert f"{folder / 'vitbn' / '2' / CONFIG}: expected the configuration of a model" in result.output
    assert result.output.splitlines()[-1].endswith("found 2 wrong"), "a damaged version is named once"


def test_verify_names_a_broken_link_with_which_triton_loads_no_version(folder: Path) -> None:
    (folder / "vitbn" / "4").symlink_to("nowhere")
    result = operate(folder, "verify")
    assert (result.exit_code, result.output.count("  ok\n")) == (1, 0)
    assert f"{folder / 'vitbn' / '4'}: expected a file or a folder, found a broken link" in result.output


def test_verify_names_a_broken_link_in_the_repository_with_which_triton_loads_no_model(folder: Path) -> None:
    (folder / "cnn").symlink_to("nowhere")
    result = operate(folder, "verify")
    assert (result.exit_code, result.output.count("  ok\n")) == (1, 3)
    assert f"{folder / 'cnn'}: expected a file or a folder, found a broken link" in result.output


def test_a_folder_that_cannot_be_read_is_not_taken_for_another_origin(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "lost+found").mkdir()
    iterdir, closed = Path.iterdir, (folder / "vitbn", folder / "lost+found")

    def refuse(path: Path) -> Iterator[Path]:
        if path in closed:
            raise PermissionError(13, "Permission denied", str(path))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refuse)  # root may read all folders
    result = operate(folder, "verify")
    assert (result.exit_code, result.output.count("of another origin")) == (1, 1)
    assert f"{folder / 'vitbn'}: Permission denied" in result.output


def test_nan_is_no_class(tmp_path: Path) -> None:
    nan = artifact_of(answer=[float("nan")] * 10)
    half = replace(nan, manifest=replace(nan.manifest, sample_tolerance=CLASS_ALONE))
    for artifact, message in ((nan, "expected the sample's answer to 1.00e-04"), (half, "expected finite numbers")):
        with pytest.raises(PublishError, match=message):
            publish(tmp_path, "vitbn", artifact)
    assert not (tmp_path / "vitbn").exists()


@pytest.mark.parametrize("existing", [False, True])
def test_a_file_that_does_not_answer_its_sample_is_not_published(existing: bool, tmp_path: Path) -> None:
    if existing:
        publish(tmp_path, "vitbn", artifact_of())
    other = artifact_of(answer=[float(number) for number in range(9)] + [9.001])
    contents = {**other.contents, "sample.npz": artifact_of().contents["sample.npz"]}
    hashes = {place: sha256(content) for place, content in contents.items()}
    wrong = Artifact(replace(other.manifest, files=hashes), contents)
    version = tmp_path / "vitbn" / ("2" if existing else "1")
    with pytest.raises(PublishError, match=r"expected the sample's answer to 1.00e-04, found an error") as caught:
        publish(tmp_path, "vitbn", wrong)
    assert str(caught.value).startswith(f"{version / 'model.onnx'}: logits: ")
    assert [path.name for path in tmp_path.glob("vitbn/[0-9]*")] == (["1"] if existing else [])


def test_publishing_names_the_users_file_that_does_not_answer_its_sample(folder: Path, exported: Path) -> None:
    artifact = read_with_sidecars(exported)
    files = {**artifact.contents, "sample.npz": exported.with_name("other.npz")}
    files["sample.npz"].write_bytes(_sample([0.0] * 10).to_bytes())
    hashes = {place: sha256(file) for place, file in files.items()}
    with pytest.raises(PublishError) as caught:
        publish(folder, "vitbn", Artifact(replace(artifact.manifest, files=hashes), files))
    assert str(caught.value).startswith(f"{exported}: logits: expected the sample's answer")


def test_publish_of_a_file_that_is_damaged(folder: Path, exported: Path) -> None:
    exported.write_bytes(exported.read_bytes()[:-1])
    assert "expected the SHA-256" in error(folder, "publish", str(exported))
    exported.with_suffix(".json").unlink()
    assert "expected an ONNX model, found another kind of file" in error(folder, "publish", str(exported))
    assert versions(folder / "vitbn") == [1, 2, 3]
