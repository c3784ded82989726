import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Barrier, Event

import numpy as np
import pytest

from clients.classifier import Classifier, Options
from serving.child import Child
from serving.ports import free_ports

pytestmark = [pytest.mark.live, pytest.mark.slow]

PROTOCOLS = ["http", "grpc"]
KEY = {"http": {"key": "secret"}, "grpc": {"triton-grpc-protocol-key": "secret"}}
IMAGES = np.random.default_rng(0).integers(0, 256, (60, 1, 28, 28), dtype=np.uint8)
START_S = 120


@contextmanager
def tritonserver(repository, ports, log):
    guarded = "model-repository,shared-memory:key=secret"
    command = [sys.executable, "-m", "serving.launcher", f"--model-repository={repository}"]
    command += ["--disable-auto-complete-config"]
    command += [f"--{service}-port={port}" for service, port in ports.items()]
    command += [f"--http-restricted-api={guarded}", f"--grpc-restricted-protocol={guarded}"]
    server = Child(command, log)
    server.start()
    try:
        yield server
    finally:
        server.stop(20)
        server.kill_session(20)


def kill(server):
    """The memory files that it leaves."""
    mapped = Path(f"/proc/{server.pid}/maps").read_text()
    os.killpg(server.pid, signal.SIGKILL)
    return [Path(path) for path in set(re.findall(r"/dev/shm/triton_\S+", mapped))]


def connect(ports, protocol, headers):
    address = f"127.0.0.1:{ports[protocol]}"
    return Classifier(Options(address, protocol, retry_s=START_S, batch_size=20, headers=headers), "vitbn")


def test_an_outage_loses_no_answer_and_strangers_change_no_model(repository, tmp_path):
    ports = dict(zip(["http", "grpc", "metrics"], free_ports(3), strict=True))
    flowing, killed = Barrier(len(PROTOCOLS) + 1), Event()

    def interrupted():
        yield IMAGES
        flowing.wait(START_S)
        assert killed.wait(START_S)
        yield IMAGES

    with ThreadPoolExecutor(len(PROTOCOLS)) as threads, ExitStack() as stack:
        with tritonserver(repository, ports, tmp_path / "log") as server:
            asking = [stack.enter_context(connect(ports, protocol, KEY[protocol])) for protocol in PROTOCOLS]
            expected = [each.index for each in asking[0].classify(IMAGES)]
            for protocol in PROTOCOLS:
                stranger = stack.enter_context(connect(ports, protocol, {}))
                (served,) = stranger.models()  # by the statistics: the index wants the key
                assert (served.name, served.model is not None) == ("vitbn", True)
                assert [each.index for each in stranger.classify(IMAGES)] == expected
            streams = [threads.submit(list, each.stream(interrupted())) for each in asking]
            flowing.wait(START_S)
            left = kill(server)
            killed.set()
        for path in left:
            path.unlink(missing_ok=True)
        with tritonserver(repository, ports, tmp_path / "log"):
            for stream in streams:
                assert [each.index for each in stream.result(START_S)] == expected * 2
