"""Operating a repository by the command line, on files and with the real server under load."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tritonclient.grpc import InferenceServerClient, InferInput

from export.publishing.artifact import read_version
from export.publishing.promote import served
from export.publishing.publish import publish, read_config, serve, versions
from export.publishing.verify import verify_version
from export.repository import repository as command
from serving.running import Server, running_server

EXPLICIT = ("--model-control-mode=explicit", "--load-model=*", "--disable-auto-complete-config")
NOWHERE = "127.0.0.1:1"
PAUSE_S = 0.01


def operate(folder: Path, *arguments: str, server: str = NOWHERE) -> Result:
    name, *rest = arguments
    options = [] if name in ("show", "verify") else ["--server", server]
    return CliRunner().invoke(command, [name, "--repository", str(folder), *options, *rest])


def ok(folder: Path, *arguments: str, server: str = NOWHERE) -> str:
    result = operate(folder, *arguments, server=server)
    assert result.exit_code == 0, result.output
    return result.output


def error(folder: Path, *arguments: str, server: str = NOWHERE) -> str:
    """The command's last line, an error."""
    result = operate(folder, *arguments, server=server)
    assert result.exit_code == 1, result.output
    last = result.output.splitlines()[-1]
    assert last.startswith("Error: ")
    return last


@pytest.fixture
def folder(repository: Path, tmp_path: Path) -> Path:
    """Versions 1, 2 and 3 of `vitbn`; 2 and 3 are served."""
    for _ in range(3):
        publish(tmp_path / "repository", "vitbn", read_version(repository / "vitbn" / "1"))
    return tmp_path / "repository"


@pytest.fixture
def exported(folder: Path, tmp_path: Path) -> Path:
    """An ONNX file and its manifest, as `to_onnx.py --output` writes them."""
    artifact = read_version(folder / "vitbn" / "1")
    (tmp_path / "vitbn.onnx").write_bytes(artifact.data)
    (tmp_path / "vitbn.json").write_bytes(artifact.manifest_json())
    return tmp_path / "vitbn.onnx"


def states(output: str) -> list[tuple[str, str, str]]:
    """Model, version and state of each row of `list`."""
    rows = [tuple(line.split()[:3]) for line in output.splitlines()[1:-1]]
    return [(model, version, state) for model, version, state in rows]


def test_list_says_what_is_served(folder: Path) -> None:
    output = ok(folder, "list")
    assert states(output) == [("vitbn", "1", "-"), ("vitbn", "2", "yes"), ("vitbn", "3", "default")]
    accuracy = 100 * json.loads((folder / "vitbn/1/manifest.json").read_text())["metrics"]["test_accuracy"]
    assert output.count(f"{accuracy:.2f}") == 3
    assert output.count("fold_batchnorm") == 3
    assert output.splitlines()[-1] == f"served: by config.pbtxt; no server answers at {NOWHERE}"


def test_list_shows_the_error_of_the_file_itself(folder: Path) -> None:
    """The manifests of int8 versions and engines also contain the float32 graph's error."""
    artifact = read_version(folder / "vitbn" / "1")
    for added in ({"precision": "int8"}, {"precision": "fp16", "engine": {"max_abs_error": 0.004}}):
        publish(folder, "vitbn", replace(artifact, manifest=artifact.manifest | added))
    errors = [line.split()[4] for line in ok(folder, "list").splitlines()[1:-1]]
    assert errors == [*[f"{artifact.manifest['max_abs_error']:.1e}"] * 3, "-", "4.0e-03"]


def test_rollback_and_promote(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.parent.name.isdecimal()}
    ok(folder, "rollback", "vitbn")
    assert served(folder / "vitbn") == [1, 2]
    ok(folder, "rollback", "vitbn")
    assert served(folder / "vitbn") == [1]
    assert "expected a version older than 1, found none" in error(folder, "rollback", "vitbn")
    assert "version 3 is the default" in ok(folder, "promote", "vitbn", "3")
    assert served(folder / "vitbn") == [2, 3]
    assert all(path.read_bytes() == content for path, content in before.items()), "no version was touched"


def test_show(folder: Path) -> None:
    assert json.loads(ok(folder, "show", "vitbn")) == json.loads((folder / "vitbn/3/manifest.json").read_text())
    assert "No such file" in error(folder, "show", "vitbn", "9")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("promote", "vitbn", "4"), "expected one of the versions 1, 2, 3, found 4"),
        (("promote", "vit", "1"), "expected one of its models (vitbn), found 'vit'"),
        (("rollback", "../vitbn"), "expected one of its models (vitbn), found '../vitbn'"),
        (("verify", "vit"), "expected one of its models (vitbn), found 'vit'"),
    ],
)
def test_what_is_not_there(folder: Path, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in error(folder, *arguments)


def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    for name in ("list", "verify", "prune"):
        assert "expected a model repository, found no such folder" in error(tmp_path / "none", name)
    assert not (tmp_path / "none").exists()


def test_prune_keeps_what_is_served_and_the_newest(folder: Path, repository: Path) -> None:
    for _ in range(2):
        publish(folder, "vitbn", read_version(repository / "vitbn" / "1"))
    serve(folder / "vitbn", [2])
    (folder / "vitbn" / ".publishing-dead").mkdir()
    output = ok(folder, "prune", "--keep", "1")
    assert versions(folder / "vitbn") == [2, 5]
    assert ".publishing-dead" in output
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["vitbn"]


@pytest.fixture
def crowded(folder: Path, tmp_path: Path) -> Path:
    """With foreign entries: a folder, a symlink to a folder, and a version that is a symlink."""
    (tmp_path / "notes").mkdir()
    (folder / "a_folder").mkdir()
    (folder / "b_link").symlink_to(tmp_path / "notes")
    (folder / "c_link").symlink_to(tmp_path / "nowhere")
    (folder / "vitbn" / "1").rename(tmp_path / "one")
    (folder / "vitbn" / "1").symlink_to(tmp_path / "one")
    return folder


def test_list_and_prune_go_on_after_a_folder_that_is_no_model(crowded: Path, tmp_path: Path) -> None:
    for arguments in (("list",), ("prune", "--keep", "1")):
        result = operate(crowded, *arguments)
        assert result.exit_code == 1
        assert result.output.count("expected the config of a published model") == 2
        assert result.output.splitlines()[-1].endswith("expected only published models, found 2 other folders")
        if arguments == ("list",):
            assert [line.split()[:2] for line in result.stdout.splitlines()[1:4]] == [["vitbn", n] for n in "123"]
    assert versions(crowded / "vitbn") == [2, 3]
    assert (tmp_path / "one" / "model.onnx").is_file(), "only the link to it is removed"
    assert (tmp_path / "notes").is_dir()


@pytest.mark.parametrize("name", ["../../evil", "", "a b"])
def test_publish_refuses_a_name_before_the_file_is_run(name: str, folder: Path, exported: Path) -> None:
    exported.write_bytes(b"not read")
    assert f"model name: expected letters, digits, _ and -, found {name!r}" in error(
        folder, "publish", str(exported), "--name", name
    )


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
    """Another file, with a manifest of its hash."""

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
        (_manifest(lambda manifest: manifest.update(sample_logits=[0.0] * 10)), "found an error of"),
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
    assert result.output.splitlines()[-1].endswith("expected every version as it was published, found 1 wrong")
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


def test_publish_of_a_file_that_is_damaged(folder: Path, exported: Path) -> None:
    exported.write_bytes(exported.read_bytes()[:-1])
    assert "expected the SHA-256" in error(folder, "publish", str(exported))
    exported.with_suffix(".json").unlink()
    assert "expected the manifest of an export" in error(folder, "publish", str(exported))
    assert versions(folder / "vitbn") == [1, 2, 3]


def test_publish_of_a_tensorrt_plan(folder: Path, exported: Path) -> None:
    profile = {"min": 1, "opt": 64, "max": 512}
    onnx = read_version(folder / "vitbn" / "1")
    plan = replace(onnx, manifest=onnx.manifest | {"engine": {"profile": profile}}, file_name="model.plan")
    file = exported.with_name("fast.plan")
    file.write_bytes(plan.data)
    file.with_suffix(".json").write_bytes(plan.manifest_json())
    ok(folder, "publish", str(file))
    config = read_config(folder / "vitbn_trt")
    assert (config.platform, config.max_batch_size) == ("tensorrt_plan", 512)
    assert [spec.batch_size for spec in config.optimization.cuda.graph_spec][-2:] == [128, 256]
    assert "no answer asked of model.plan" in ok(folder, "verify", "vitbn_trt")


class Load:
    """Sends requests in sequence during a block, without retries; records versions and failures.

    The pauses leave the server time to load.
    """

    def __init__(self, server: Server) -> None:
        self.url = server.grpc_url
        self.answered: Counter[str] = Counter()
        self.failures: list[str] = []
        self._stop = threading.Event()

    def _ask(self) -> None:
        image = InferInput("image", [1, 1, 28, 28], "UINT8")
        image.set_data_from_numpy(np.zeros((1, 1, 28, 28), np.uint8))
        with InferenceServerClient(self.url) as client:
            while not self._stop.is_set():
                try:
                    self.answered[client.infer("vitbn", [image]).get_response().model_version] += 1
                except Exception as failure:
                    self.failures.append(str(failure))
                time.sleep(PAUSE_S)

    @contextmanager
    def running(self, count: int = 3) -> Iterator["Load"]:
        threads = [threading.Thread(target=self._ask) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def wait_for(self, version: int, timeout_s: float = 60) -> None:
        """Waits until `version` answers."""
        before, deadline = self.answered[str(version)], time.monotonic() + timeout_s
        while self.answered[str(version)] <= before:
            assert time.monotonic() < deadline, f"version {version} never answered: {self.answered}, {self.failures}"
            time.sleep(0.01)


@pytest.mark.live
def test_versions_change_under_load_without_a_failure(folder: Path, exported: Path) -> None:
    with running_server(folder, EXPLICIT) as server, Load(server).running() as load:
        url = server.http_url
        load.wait_for(3)
        ok(folder, "publish", str(exported), server=url)
        load.wait_for(4)
        ok(folder, "rollback", "vitbn", server=url)
        load.wait_for(3)
        assert states(ok(folder, "list", server=url))[-2:] == [("vitbn", "3", "default"), ("vitbn", "4", "-")]
        ok(folder, "promote", "vitbn", "2", server=url)
        load.wait_for(2)
        ok(folder, "promote", "vitbn", "4", server=url)
        load.wait_for(4)
        assert sum(load.answered.values()) > 20
        assert not load.failures


@contextmanager
def damaged_as_it_appears(version: Path) -> Iterator[None]:
    """Damages a version between publication and load, as a failing disk would."""
    done = threading.Event()

    def damage() -> None:
        while not done.is_set():
            if (version / "manifest.json").is_file():
                (version / "model.onnx").write_bytes(b"no graph")
                return

    thread = threading.Thread(target=damage)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.mark.live
def test_a_version_that_cannot_be_loaded_leaves_the_old_one_serving(folder: Path, exported: Path) -> None:
    with running_server(folder, EXPLICIT) as server, Load(server).running() as load:
        url = server.http_url
        load.wait_for(3)
        with damaged_as_it_appears(folder / "vitbn" / "4"):
            assert "unable to load model 'vitbn'" in error(folder, "publish", str(exported), server=url)
        load.wait_for(3)
        assert served(folder / "vitbn") == [2, 3]
        assert states(ok(folder, "list", server=url))[-2][2] == "default"
        with damaged_as_it_appears(folder / "fresh" / "1"):
            assert "unable to load" in error(folder, "publish", str(exported), "--name", "fresh", server=url)
        assert not (folder / "fresh").exists()
        ok(folder, "publish", str(exported), server=url)
        load.wait_for(5)
        assert served(folder / "vitbn") == [3, 5]
        assert not load.failures
    with running_server(folder):  # loads what config.pbtxt names, or stops
        pass


@pytest.mark.live
def test_a_server_in_another_mode_leaves_the_change_to_the_next_start(folder: Path, exported: Path) -> None:
    with running_server(folder, ["--model-control-mode=none", "--disable-auto-complete-config"]) as server:
        output = ok(folder, "publish", str(exported), server=server.http_url)
        assert "start it with --model-control-mode=explicit --load-model=*" in output
        assert served(folder / "vitbn") == [3, 4]
        assert "loads no models on request" in ok(folder, "rollback", "vitbn", server=server.http_url)
        assert served(folder / "vitbn") == [2, 3], "the version that was served before 4 is the default again"
        ok(folder, "promote", "vitbn", "4", server=server.http_url)
        assert states(ok(folder, "list", server=server.http_url))[2:] == [
            ("vitbn", "3", "default"),
            ("vitbn", "4", "-"),
        ]
    with running_server(folder, EXPLICIT) as server:
        assert states(ok(folder, "list", server=server.http_url))[-1] == ("vitbn", "4", "default")


@pytest.mark.live
def test_a_restricted_server_asks_for_its_key(folder: Path) -> None:
    restricted = [*EXPLICIT, "--http-restricted-api=model-repository:key=secret"]
    with running_server(folder, restricted) as server:
        assert "--header NAME:VALUE" in error(folder, "rollback", "vitbn", server=server.http_url)
        assert served(folder / "vitbn") == [2, 3]
        ok(folder, "rollback", "vitbn", "--header", "key: secret", server=server.http_url)
        assert served(folder / "vitbn") == [1, 2]


@pytest.mark.live
def test_an_overload_is_refused_not_queued(folder: Path, repository: Path) -> None:
    artifact = read_version(repository / "vitbn" / "1")
    publish(folder, "bounded", artifact)
    path = folder / "bounded" / "config.pbtxt"
    text = path.read_text()
    assert "max_queue_size: 16" in text
    path.write_text(text.replace("max_queue_size: 16", "max_queue_size: 2"))
    image = InferInput("image", [256, 1, 28, 28], "UINT8")
    image.set_data_from_numpy(np.zeros((256, 1, 28, 28), np.uint8))
    answers: list[str] = []
    with running_server(folder) as server, InferenceServerClient(server.grpc_url) as client:
        for _ in range(40):
            client.async_infer("bounded", [image], lambda result, error: answers.append(str(error or "answered")))
        deadline = time.monotonic() + 60
        while len(answers) < 40:
            assert time.monotonic() < deadline, answers
            time.sleep(0.05)
    refused = [answer for answer in answers if "maximum queue size" in answer]
    assert refused
    assert answers.count("answered") == 40 - len(refused) > 0
