import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
from stand_in import StandIn

from clients.classifier import AsyncClassifier, Classifier, Options

IMAGES = np.zeros((8, 1, 28, 28), dtype=np.uint8)
WITHIN_S = 30


@pytest.fixture
def server():
    go_on, reached = threading.Event(), threading.Event()

    def hold(number):
        reached.set()
        go_on.wait(WITHIN_S)

    with StandIn(hold).serving("http") as stand_in:
        stand_in.go_on, stand_in.reached = go_on, reached
        yield stand_in
        go_on.set()


def client_threads():
    return [thread for thread in threading.enumerate() if thread.name == "classifier"]


def run(script, *arguments, options=("-W", "error")):
    command = [sys.executable, *options, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)


def test_a_closed_classifier_raises(server):
    server.go_on.set()
    classifier = Classifier(server.options())
    assert len(classifier.classify(IMAGES)) == 8
    classifier.close()
    classifier.close()
    for use in (classifier.classify, classifier.logits, lambda images: list(classifier.stream(images))):
        with pytest.raises(RuntimeError, match="expected an open classifier"):
            use(IMAGES)
    with pytest.raises(RuntimeError, match="expected an open classifier"):
        classifier.models()
    assert not client_threads()


def test_an_unopened_classifier_raises():
    asking = AsyncClassifier(Options("127.0.0.1:1")).models()
    with pytest.raises(RuntimeError, match="not opened"):
        asking.send(None)


@pytest.mark.parametrize("use", ["classify", "stream"])
def test_closing_ends_what_others_wait_for(server, use):
    raised = []

    def ask():
        try:
            list(getattr(classifier, use)(IMAGES[:4]))
        except RuntimeError as error:
            raised.append(str(error))

    classifier = Classifier(server.options())
    waiting = threading.Thread(target=ask)
    waiting.start()
    assert server.reached.wait(WITHIN_S)
    classifier.close()
    waiting.join(WITHIN_S)
    assert raised == ["the classifier was closed while a request was under way"]


def test_a_forgotten_client_ends_its_thread(server):
    server.go_on.set()
    classifier = Classifier(server.options())
    assert len(client_threads()) == 1
    del classifier
    gc.collect()
    for thread in client_threads():
        thread.join(WITHIN_S)
    assert not client_threads()


FORGET = """
import sys, numpy as np
from clients.classifier import Classifier, Options
classifier = Classifier(Options(sys.argv[1], sys.argv[2]))
print(len(classifier.classify(np.zeros((8, 1, 28, 28), np.uint8))))
if len(sys.argv) > 3:
    raise KeyError("unexpected")
"""


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_process_may_end_without_closing(protocol):
    with StandIn().serving(protocol) as stand_in:
        done = run(FORGET, stand_in.url, protocol)
        assert (done.returncode, done.stdout, done.stderr) == (0, "8\n", "")
        failed = run(FORGET, stand_in.url, protocol, "fail")
    assert (failed.returncode, failed.stdout) == (1, "8\n")
    assert failed.stderr.splitlines()[-1] == "KeyError: 'unexpected'"


FORK = """
import os, sys, numpy as np
from clients.classifier import Classifier, Options
images = np.zeros((8, 1, 28, 28), np.uint8)
with Classifier(Options(sys.argv[1])) as classifier:
    child = os.fork()
    if child == 0:
        try:
            classifier.classify(images)
        except RuntimeError as error:
            print(error, flush=True)
        sys.exit(5)  # with all exit handlers
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), len(classifier.classify(images)))
"""


@pytest.mark.slow
def test_a_classifier_in_a_forked_child_raises(server):
    server.go_on.set()
    done = run(FORK, server.url, options=())  # Python 3.12 warns of any fork beside a thread
    assert done.returncode == 0, done.stderr
    told, parent = done.stdout.splitlines()
    assert "closed or forked" in told
    assert parent == "5 8"


def test_an_interrupt_that_another_thread_takes_ends_the_wait():
    """The kernel may give the signal to any thread: the wait of the main thread is then not woken."""
    script = (
        "import asyncio, signal, threading\n"
        "from clients.loop_thread import LoopThread\n"
        "loop = LoopThread('test')\n"
        "async def wait():\n"
        "    threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)).start()\n"
        f"    await asyncio.sleep({2 * WITHIN_S})\n"
        "try:\n"
        "    loop.run(wait())\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    assert run(script).stdout == "interrupted\n"
