import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from raw_server import answering, reply
from stand_in import StandIn, expected_logits

from clients.classifier import Classifier, DeadlineExceeded, Options, ServerBusy, ServerUnavailable, list_models

PROTOCOLS = ["http", "grpc"]
IMAGES = np.random.default_rng(0).integers(0, 256, (9, 1, 28, 28), dtype=np.uint8)
NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_requests_go_to_the_second_server_when_the_first_ends(protocol):
    with ExitStack() as stack:
        first = StandIn()
        leaving = stack.enter_context(ExitStack())
        leaving.enter_context(first.serving(protocol))
        second = stack.enter_context(StandIn().serving(protocol))
        url = f"{first.url},{second.url}"
        classifier = stack.enter_context(Classifier(Options(url, protocol, retry_s=5)))
        np.testing.assert_array_equal(classifier.logits(IMAGES), expected_logits(IMAGES))
        assert (len(first.batches), len(second.batches)) == (3, 0)
        if protocol == "http":
            first.before = vanish  # its threads go on
        leaving.close()
        np.testing.assert_array_equal(classifier.logits(IMAGES), expected_logits(IMAGES))
        assert len(second.batches) == 3


def vanish(number):
    raise ConnectionAbortedError


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_absent_server_and_a_busy_one_pass_the_request_on(protocol):
    with ExitStack() as stack:
        busy = stack.enter_context(StandIn(lambda number: "too busy").serving(protocol))
        idle = stack.enter_context(StandIn().serving(protocol))
        url = f"{NOBODY}, {busy.url},{idle.url}"
        assert [each.name for each in list_models(Options(url, protocol, retry_s=0))] == ["net"]
        classifier = stack.enter_context(Classifier(Options(url, protocol, retry_s=0, concurrency=1)))
        np.testing.assert_array_equal(classifier.logits(IMAGES), expected_logits(IMAGES))
        assert (len(busy.batches), len(idle.batches)) == (1, 3)


def test_a_silent_server_leaves_time_for_the_next_server():
    with socket.create_server(("127.0.0.1", 0)) as silent, StandIn().serving("http") as server:
        url = f"127.0.0.1:{silent.getsockname()[1]},{server.url}"
        with Classifier(Options(url, timeout_s=4, retry_s=0)) as classifier:
            assert len(classifier.classify(IMAGES)) == 9


@pytest.mark.parametrize("status", ["500 Internal Server Error", "503 Service Unavailable"])
def test_a_failing_one_is_not_believed_about_a_model(status):
    with (
        answering(lambda path: [reply(b"<html>", status)]) as failing,
        StandIn().serving("http") as server,
        Classifier(Options(f"{failing},{server.url}", retry_s=0), "net") as classifier,
    ):
        np.testing.assert_array_equal(classifier.logits(IMAGES), expected_logits(IMAGES))


def test_all_away():
    with pytest.raises(ServerUnavailable, match=r"no Triton server answers at 127\.0\.0\.1:2"):
        Classifier(Options(f"{NOBODY},127.0.0.1:2", retry_s=0))
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(DeadlineExceeded, match=r"within 0\.4 s"):
        Classifier(Options(f"{NOBODY},127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.4, retry_s=0))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_busy_server_and_an_absent_server_raise_different_errors(protocol):
    with ExitStack() as stack:
        server = stack.enter_context(StandIn(lambda number: "Exceeds maximum queue size").serving(protocol))
        classifier = stack.enter_context(Classifier(server.options(retry_s=0)))
        with pytest.raises(ServerBusy, match=r"is too busy: Exceeds maximum queue size$"):
            classifier.classify(IMAGES[:1])
        server.before = lambda number: "the model is starting"
        with pytest.raises(ServerUnavailable, match="is unavailable") as raised:
            classifier.classify(IMAGES[:1])
    assert not isinstance(raised.value, ServerBusy)


def test_retries_at_a_busy_server_are_limited():
    """40 requests share 10 retries."""
    with StandIn(lambda number: "too busy").serving("http") as server:
        failures = []
        with Classifier(server.options(retry_s=10, concurrency=8)) as classifier:

            def ask(number):
                for _ in range(5):
                    with pytest.raises(ServerBusy, match=r"is too busy: too busy$"):
                        classifier.classify(IMAGES[:1])
                    failures.append(1)

            with ThreadPoolExecutor(8) as threads:
                list(threads.map(ask, range(8)))
        assert len(failures) == 40
        assert len(server.batches) <= 40 + 10


def test_answers_earn_retries():
    from clients.retry_and_failover import _RetryBudget

    budget = _RetryBudget()
    assert [budget.spend() for _ in range(11)] == [True] * 10 + [False]
    for _ in range(11):
        budget.earn()
    assert [budget.spend() for _ in range(2)] == [True, False]
