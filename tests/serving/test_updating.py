import shutil
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http
from click.testing import CliRunner

from export.repository import repository as command
from serving import launcher
from serving.running import Server, running_server


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["--model-control-mode=explicit", "--load-model=*"]),
        (["--model-repository", "models"], ["--model-control-mode=explicit", "--load-model=*"]),
        (["--load-model=vitbn"], ["--model-control-mode=explicit"]),
        (["--load-model", "vitbn"], ["--model-control-mode=explicit"]),
        (["--model-control-mode=poll"], []),
        (["--model-control-mode", "none"], []),
    ],
)
def test_the_user_chooses_mode_and_models(arguments: list[str], expected: list[str]) -> None:
    assert launcher.control_defaults(arguments) == expected


def operate(repository: Path, server: Server, *arguments: str) -> str:
    name, *rest = arguments
    done = CliRunner().invoke(command, [name, "--repository", str(repository), "--server", server.http_url, *rest])
    assert done.exit_code == 0, done.output
    return done.stdout


def answering_version(server: Server) -> str:
    image = http.InferInput("image", [1, 1, 28, 28], "UINT8")
    image.set_data_from_numpy(np.zeros((1, 1, 28, 28), np.uint8))
    with http.InferenceServerClient(server.http_url) as client:
        version: str = client.infer("vitbn", [image]).get_response()["model_version"]
    return version


@pytest.mark.live
@pytest.mark.slow
def test_publish_and_promote_reach_a_server_started_plainly(repository: Path, tmp_path: Path) -> None:
    own = tmp_path / "models"
    shutil.copytree(repository, own)
    file = tmp_path / "vitbn.onnx"
    shutil.copy(own / "vitbn/1/model.onnx", file)
    shutil.copy(own / "vitbn/1/manifest.json", file.with_suffix(".json"))
    shutil.copy(own / "vitbn/1/sample.npz", file.with_suffix(".npz"))
    with running_server(own, ["--disable-auto-complete-config"]) as server:
        assert answering_version(server) == "1"
        operate(own, server, "publish", str(file), "--name", "vitbn")
        assert answering_version(server) == "2"
        operate(own, server, "promote", "vitbn", "1")
        assert answering_version(server) == "1"
