import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from clients.classifier import Classifier, Options, ServerError, ServerUnavailable
from serving.running import _stop, free_ports

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
    with log.open("ab") as file:
        server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield server
    finally:
        _stop(server)


def kill(server):
    """The memory files that it leaves."""
    mapped = Path(f"/proc/{server.pid}/maps").read_text()
    os.killpg(server.pid, signal.SIGKILL)
    return [Path(path) for path in set(re.findall(r"/dev/shm/triton_\S+", mapped))]


def connect(ports, protocol, retry_s, headers=KEY):
    address = f"127.0.0.1:{ports[protocol]}"
    return Classifier(Options(address, protocol, retry_s=retry_s, batch_size=20, headers=headers[protocol]), "vitbn")


def check_guard(ports, protocol):
    with connect(ports, protocol, retry_s=0, headers={"http": {}, "grpc": {}}) as stranger:
        with pytest.raises(ServerError, match="is restricted, expecting header"):
            stranger.models()
        assert len(stranger.classify(IMAGES)) == 60


def test_an_outage_loses_no_answer(repository, tmp_path):
    ports = dict(zip(["http", "grpc", "metrics"], free_ports(3), strict=True))
    flowing, killed = threading.Barrier(len(PROTOCOLS) + 1), threading.Event()

    def endless():
        yield IMAGES
        flowing.wait(START_S)
        while True:
            yield IMAGES

    def interrupted():
        yield IMAGES
        assert killed.wait(START_S)
        yield IMAGES

    def indices(classifier, images):
        return [prediction.index for prediction in classifier.stream(images)]

    with ThreadPoolExecutor(3 * len(PROTOCOLS)) as threads:
        opening = [threads.submit(connect, ports, protocol, retry_s=START_S) for protocol in PROTOCOLS]
        time.sleep(1)
        assert not any(each.done() for each in opening)  # no server listens yet
        with tritonserver(repository, ports, tmp_path / "log") as server:
            patient = [each.result(START_S) for each in opening]
            hasty = [connect(ports, protocol, retry_s=0.5) for protocol in PROTOCOLS]
            expected = patient[0].logits(IMAGES).argmax(axis=1).tolist()
            list(threads.map(check_guard, [ports] * len(PROTOCOLS), PROTOCOLS))
            breaking = [threads.submit(indices, classifier, endless()) for classifier in hasty]
            waiting = [threads.submit(indices, classifier, interrupted()) for classifier in patient]
            flowing.wait(START_S)
            left = kill(server)
            for each in breaking:
                with pytest.raises(ServerUnavailable, match="server"):
                    each.result(START_S)
            killed.set()
        for path in left:
            path.unlink(missing_ok=True)
        with tritonserver(repository, ports, tmp_path / "log"):
            assert [each.result(START_S) for each in waiting] == [expected * 2] * len(PROTOCOLS)
            for classifier in [*hasty, *patient]:
                for _ in range(3):  # a connection may be old
                    again = threads.submit(indices, classifier, IMAGES)
                    assert again.result(START_S) == expected
    for classifier in [*hasty, *patient]:
        classifier.close()
