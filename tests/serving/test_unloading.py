from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http as http
from server_state import shared_memory
from tiny_models import IMAGE, LOGITS, ONE_INSTANCE, OPEN, check_answers, write_model
from tritonclient.utils import InferenceServerException
from waiting import wait_until

from serving.local_server import Server, running_server
from serving.stub_processes import ServerProcesses

pytestmark = pytest.mark.live
TIMEOUT_S = 60.0

MODELS = {"onnxruntime": f"max_batch_size: 8 {IMAGE} {LOGITS} {ONE_INSTANCE}", "openvino": f"{OPEN} {ONE_INSTANCE}"}


def stubs(server: Server) -> set[int]:
    return {stub.process.pid for stub in ServerProcesses(server.pid).model_stubs()}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("repository")
    for engine, config in MODELS.items():
        write_model(path, engine, config=config, backend=engine)
    return path


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    arguments = ["--model-control-mode=explicit", "--disable-auto-complete-config", "--open-control"]
    with running_server(repository, arguments) as running:
        yield running


@pytest.mark.parametrize("engine", MODELS)
def test_unloading_frees_all_and_a_broken_version_leaves_the_old_one_serving(
    server: Server, repository: Path, engine: str
) -> None:
    processes, memory = stubs(server), shared_memory(server)
    with http.InferenceServerClient(server.http_url, network_timeout=TIMEOUT_S, connection_timeout=TIMEOUT_S) as client:
        for _ in range(2):  # nothing may be left behind
            client.load_model(engine)
            check_answers(client, engine)
            assert len(stubs(server) - processes) == 1
            assert shared_memory(server) - memory
            client.unload_model(engine)  # answered before the model is gone
            wait_until(lambda: (stubs(server), shared_memory(server)) == (processes, memory), "unloaded")
        client.load_model(engine)
        (broken := repository / engine / "2").mkdir()
        (broken / "model.onnx").write_bytes(b"no model")
        with pytest.raises(InferenceServerException, match=r"cannot (read|load) the model"):
            client.load_model(engine)
        check_answers(client, engine)
        client.unload_model(engine)
        wait_until(lambda: stubs(server) == processes, "unloaded")
