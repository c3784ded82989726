import errno
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from artifacts import ARTIFACT, artifact_of

from common.files import naming_if_unnamed
from common.repository import served_versions, versions
from export.errors import PublishError
from export.publishing import publish as module
from export.publishing.artifact import read_version
from export.publishing.build_config_pbtxt import Serving
from export.publishing.publish import publish, read_config, serve, sweep
from export.publishing.sidecar import write_flushed, write_with_sidecars
from models.networks.config import ModelConfig


def test_versions_count_up_and_stay(tmp_path: Path) -> None:
    first = publish(tmp_path, "vitbn", ARTIFACT)
    assert first == tmp_path / "vitbn" / "1"
    assert publish(tmp_path, "vitbn", artifact_of(note="new")) == tmp_path / "vitbn" / "2"
    assert (first / "model.onnx").read_bytes() == ARTIFACT.data
    assert (tmp_path / "vitbn/2/model.onnx").read_bytes() == artifact_of(note="new").data
    assert (first / "sample.npz").read_bytes() == ARTIFACT.contents["sample.npz"]
    assert read_version(first).manifest == ARTIFACT.manifest
    assert read_version(first).data == ARTIFACT.data
    assert (tmp_path / "vitbn/labels.txt").read_text().split() == list("0123456789")
    assert sorted(p.name for p in (tmp_path / "vitbn").iterdir()) == ["1", "2", "config.pbtxt", "labels.txt"]
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["vitbn"]


def test_the_new_version_is_served_beside_the_one_before(tmp_path: Path) -> None:
    for _ in range(3):
        publish(tmp_path, "vitbn", ARTIFACT)
    config = read_config(tmp_path / "vitbn")
    assert config.version_policy.latest.num_versions == 2
    serve(tmp_path / "vitbn", [1, 2])
    publish(tmp_path, "vitbn", ARTIFACT)
    config = read_config(tmp_path / "vitbn")
    assert list(config.version_policy.specific.versions) == [2, 4], "version 3 had been withdrawn"
    publish(tmp_path, "vitbn", ARTIFACT)
    assert served_versions(read_config(tmp_path / "vitbn"), versions(tmp_path / "vitbn")) == [4, 5]
    assert read_config(tmp_path / "vitbn").version_policy.latest.num_versions == 2


def test_another_users_server_reads_what_a_private_umask_wrote(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        publish(tmp_path, "vitbn", ARTIFACT)
        publish(tmp_path, "vitbn", ARTIFACT)
    finally:
        os.umask(before)
    paths = [tmp_path / "vitbn", *(tmp_path / "vitbn").rglob("*")]
    assert [path for path in paths if path.stat().st_mode & 0o777 != (0o755 if path.is_dir() else 0o644)] == []


@pytest.mark.parametrize("name", ["", "..", "../../evil", "a/b", "a b", "-x", ".hidden"])
def test_names_that_triton_would_not_take(tmp_path: Path, name: str) -> None:
    with pytest.raises(PublishError, match="model name: expected"):
        publish(tmp_path / "repository", name, ARTIFACT)
    assert not list(tmp_path.iterdir())


def test_a_folder_whose_number_has_no_place_in_the_config_is_no_version(tmp_path: Path) -> None:
    publish(tmp_path, "vitbn", ARTIFACT)
    (tmp_path / "vitbn" / "20261123170000123456").mkdir()
    assert publish(tmp_path, "vitbn", ARTIFACT).name == "2"


def test_a_model_for_other_images_or_classes_or_another_engine_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, "vitbn", ARTIFACT)
    before = (tmp_path / "vitbn/config.pbtxt").read_bytes()
    found = "expected a model for openvino, found a model for onnxruntime; publish it under another --name"
    with pytest.raises(PublishError, match=found):
        publish(tmp_path, "vitbn", ARTIFACT, Serving("openvino"))
    for config in (ModelConfig(channels=3), ModelConfig(labels=tuple("abcdefghij"))):
        with pytest.raises(PublishError, match="publish it under another --name"):
            publish(tmp_path, "vitbn", artifact_of(config))
    assert (tmp_path / "vitbn/config.pbtxt").read_bytes() == before
    assert versions(tmp_path / "vitbn") == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 0},
        {"temperature": float("nan")},
        {"metrics": {"test_accuracy": "0.9"}},
        {"tolerance": float("nan")},
    ],
    ids=str,
)
def test_numbers_that_no_client_could_use_are_in_no_manifest(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=r"temperature|tolerance|not supported between"):
        artifact_of(**wrong)


def test_labels_that_are_no_text_are_refused(tmp_path: Path) -> None:
    publish(tmp_path, "vitbn", ARTIFACT)
    (tmp_path / "vitbn/labels.txt").write_bytes(b"\xff")
    with pytest.raises(PublishError, match=r"labels.txt: expected the classes of a published model, found 'utf-8'"):
        publish(tmp_path, "vitbn", ARTIFACT)
    assert versions(tmp_path / "vitbn") == [1]


def test_a_damaged_version_prevents_no_new_one_but_cannot_be_the_default(tmp_path: Path) -> None:
    for _ in range(2):
        publish(tmp_path, "vitbn", ARTIFACT)
    (tmp_path / "vitbn/2/manifest.json").write_text("{")
    publish(tmp_path, "vitbn", ARTIFACT)
    with pytest.raises(PublishError, match=r"2/manifest\.json: expected the manifest of an export"):
        serve(tmp_path / "vitbn", [1, 2])
    assert served_versions(read_config(tmp_path / "vitbn"), versions(tmp_path / "vitbn")) == [2, 3]


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vitbn").mkdir()
    with pytest.raises(PublishError, match="expected the config of a published model"):
        publish(tmp_path, "vitbn", ARTIFACT)


@pytest.mark.parametrize(
    ("existing", "failing"),
    [(False, "1/manifest.json"), (True, "manifest.json"), (True, "vitbn/config.pbtxt")],
    ids=["new model", "next version", "the model's config"],
)
def test_a_failed_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool, failing: str
) -> None:
    repository = tmp_path / "repository"
    if existing:
        publish(repository, "vitbn", ARTIFACT)
    lock = repository / ".lock"
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} | {lock: b""}
    real = module.write_atomically

    def full_disk(path: Path, data: bytes) -> None:
        if str(path).endswith(failing):
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(module, "write_atomically", full_disk)
    with pytest.raises(OSError, match=f"No space left on device: '{repository / 'vitbn'}"):
        publish(repository, "vitbn", ARTIFACT)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_full_disk_is_named_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/x.onnx'$"):
        write_with_sidecars(tmp_path / "x.onnx", ARTIFACT)
    assert not [*tmp_path.iterdir()]


def test_a_full_disk_is_not_blamed_on_the_file_that_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "source.onnx"
    source.write_bytes(bytes(100_000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with naming_if_unnamed(tmp_path / "repository"):
        write_flushed(source, tmp_path / "copy.onnx")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=f"'{tmp_path}/repository'$"), naming_if_unnamed(tmp_path / "repository"):
            write_flushed(source, tmp_path / "copy.onnx")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_sweeping_leaves_what_is_anothers(tmp_path: Path) -> None:
    mine, another = tmp_path / ".publishing-a-12345678", tmp_path / ".publishing-a-b-12345678"
    for folder in (mine, another, tmp_path / "a" / "vitbn"):
        folder.mkdir(parents=True)
    assert sweep(tmp_path / "a") == [mine]
    assert another.is_dir()


def test_a_mounted_repository_gets_and_loses_models(tmp_path: Path) -> None:
    """A rename from beside it would cross file systems."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    in_own_mounts = [
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        'mount -t tmpfs tmpfs "$0" && exec "$@"',
        str(mounted),
    ]
    if subprocess.run([*in_own_mounts, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount")
    script = """if True:
        import sys
        from pathlib import Path

        from artifacts import ARTIFACT
        from export.publishing.publish import publish, remove_model, sweep

        repository = Path(sys.argv[1])
        (repository / ".publishing-12345678").mkdir()
        print(publish(repository, "vitbn", ARTIFACT), *sweep(repository))
        print(sorted(path.name for path in repository.iterdir()))
        remove_model(repository / "vitbn")
        print(sorted(path.name for path in repository.iterdir()))
    """
    run = subprocess.run(
        [*in_own_mounts, sys.executable, "-c", script, str(mounted)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert not run.returncode, run.stderr
    published = f"{mounted}/vitbn/1 {mounted}/.publishing-12345678"
    assert run.stdout.splitlines() == [published, "['.lock', 'vitbn']", "['.lock']"]


def test_a_link_to_a_repository_is_staged_and_swept_beside_the_repository(tmp_path: Path) -> None:
    """The link may stand on another file system."""
    left = tmp_path / "disk" / ".publishing-models-12345678"
    for folder in (left, left.with_name("models"), tmp_path / "links"):
        folder.mkdir(parents=True)
    (tmp_path / "links" / "a").symlink_to(left.with_name("models"))
    with module._staging_beside(tmp_path / "links" / "a") as staging:
        assert staging.parent == left.parent
    assert sweep(tmp_path / "links" / "a") == [left]
