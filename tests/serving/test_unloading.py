import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http as http
from backends import BACKENDS
from tiny_models import IMAGE, LOGITS, ONE_INSTANCE, check_answers, write_model
from tritonclient.utils import InferenceServerException

from serving.launcher import backend_files, pytriton_folder
from serving.processes import Family
from serving.running import Server, running_server

pytestmark = pytest.mark.live
TIMEOUT_S = 60.0
POLL_S = 0.1

BATCHED = f"max_batch_size: 8 {IMAGE} {LOGITS} {ONE_INSTANCE}"
OPEN = BATCHED.replace("max_batch_size: 8", 'default_model_filename: "model.onnx"').replace("dims: [", "dims: [-1, ")
MODELS = {"onnxruntime": BATCHED, "openvino": OPEN}


def stubs(server: Server) -> set[int]:
    return {stub.process.pid for stub in Family(server.pid).look()}


def shared_memory(server: Server) -> set[str]:
    fields = (line.split() for line in Path(f"/proc/{server.pid}/maps").read_text().splitlines())
    return {path for *_, path in fields if path.startswith("/dev/shm/") and Path(path).exists()}


@pytest.fixture(scope="module")
def own_backends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies instead of the launcher's links."""
    folder: Path = tmp_path_factory.mktemp("backends")
    for name, source in backend_files(pytriton_folder()).items():
        if source.is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(source, folder / name)
    for engine in MODELS:
        shutil.copytree(BACKENDS / engine, folder / engine, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("repository")
    for engine, config in MODELS.items():
        write_model(path, engine, config=config, backend=engine)
    return path


@pytest.fixture(scope="module")
def server(own_backends: Path, repository: Path) -> Iterator[Server]:
    explicit = ["--model-control-mode=explicit", f"--backend-directory={own_backends}"]
    with running_server(repository, explicit) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[http.InferenceServerClient]:
    timeouts = {"network_timeout": TIMEOUT_S, "connection_timeout": TIMEOUT_S}
    with http.InferenceServerClient(server.http_url, **timeouts) as http_client:
        yield http_client


@pytest.mark.parametrize("engine", MODELS)
def test_unloading_ends_the_stub_and_frees_its_memory(
    server: Server, client: http.InferenceServerClient, engine: str
) -> None:
    processes, memory = stubs(server), shared_memory(server)
    for _ in range(2):  # nothing may be left behind
        client.load_model(engine)
        check_answers(client, engine)
        stub = stubs(server) - processes
        assert len(stub) == 1
        assert shared_memory(server) - memory
        client.unload_model(engine)  # answered before the model is gone
        deadline = time.monotonic() + TIMEOUT_S
        while Path(f"/proc/{min(stub)}").exists() or shared_memory(server) != memory:
            assert time.monotonic() < deadline, f"left: {stubs(server)}, {shared_memory(server) - memory}"
            time.sleep(POLL_S)
        assert stubs(server) == processes


@pytest.mark.parametrize("engine", MODELS)
def test_version_that_fails_to_load_leaves_the_old_one_serving(
    repository: Path, client: http.InferenceServerClient, engine: str
) -> None:
    client.load_model(engine)
    broken = repository / engine / "2"
    broken.mkdir()
    (broken / "model.onnx").write_bytes(b"no model")
    with pytest.raises(InferenceServerException, match=r"cannot (read|load) the model"):
        client.load_model(engine)
    check_answers(client, engine)
