import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_in import StandIn, expected_logits

from clients.batches import gather
from clients.classifier import AsyncClassifier, Classifier, InvalidImage, Options

IMAGES = np.random.default_rng(0).integers(0, 256, (90, 1, 28, 28), dtype=np.uint8)
LABELS = ["abc"[index] for index in expected_logits(IMAGES).argmax(axis=1)]
SHAPE = (1, 28, 28)


def slowly(number):
    time.sleep(random.uniform(0, 0.01))


@pytest.fixture
def server():
    with StandIn(slowly).serving("http") as stand_in:
        yield stand_in


def connect(server, kind=Classifier, **options):
    return kind(server.options(**{"batch_size": 3, **options}))


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 7), st.randoms())
def test_any_portions_become_batches_of_one_size(lengths, size, chance):
    images = IMAGES[: sum(lengths)]
    pieces = np.split(images, np.cumsum(lengths)[:-1]) if lengths else []
    portions = [piece[0] if len(piece) == 1 and chance.random() < 0.5 else piece for piece in pieces]
    batches = list(gather(portions, SHAPE, size))
    np.testing.assert_array_equal(np.concatenate([IMAGES[:0], *batches]), images)
    assert all(len(batch) == size for batch in batches[:-1])
    assert all(0 < len(batch) <= size for batch in batches)


def test_a_masked_array_is_sent_with_its_own_pixels(server):
    with connect(server) as classifier:
        masked = np.ma.masked_array(IMAGES, IMAGES > 99)
        np.testing.assert_array_equal(classifier.logits(masked), expected_logits(IMAGES))


def test_gathered_images_are_copied():
    def refilled():
        buffer = np.empty(SHAPE, np.uint8)
        for image in IMAGES:
            buffer[:] = image
            yield buffer

    np.testing.assert_array_equal(np.concatenate(list(gather(refilled(), SHAPE, 7))), IMAGES)


@pytest.mark.parametrize(
    "wrong",
    [
        IMAGES.astype(np.int16),
        IMAGES[0, 0],
        IMAGES[:, :, :27],
        IMAGES[None],
        None,
        b"7" * 784,
    ],
)
def test_a_wrong_array_in_a_stream_is_refused_after_the_images_before_it(wrong):
    batches = gather([IMAGES[:2], wrong], SHAPE, 2)
    np.testing.assert_array_equal(next(batches), IMAGES[:2])
    with pytest.raises(InvalidImage, match=r"expected uint8 \(n, 1, 28, 28\), found"):
        next(batches)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_answers_come_in_order_and_requests_are_bounded(server, concurrency):
    with connect(server, concurrency=concurrency) as classifier:
        assert [prediction.label for prediction in classifier.stream(iter(IMAGES))] == LABELS
        np.testing.assert_array_equal(classifier.logits(IMAGES), expected_logits(IMAGES))
    assert server.batches == [3] * 60
    assert server.most_at_once == concurrency


@pytest.mark.parametrize("concurrency", [1, 3])
def test_the_same_with_asyncio(server, concurrency):
    async def pulled():
        for image in IMAGES:
            await asyncio.sleep(0)
            yield image

    async def ask():
        async with connect(server, AsyncClassifier, concurrency=concurrency) as classifier:
            for images in (iter(IMAGES), pulled(), [IMAGES[:50], IMAGES[50:]]):
                assert [prediction.label async for prediction in classifier.stream(images)] == LABELS
            np.testing.assert_array_equal(await classifier.logits(IMAGES), expected_logits(IMAGES))
            several = await asyncio.gather(*(classifier.classify(IMAGES[:40]) for _ in range(4)))
            assert [prediction.label for prediction in several[3]] == LABELS[:40]

    asyncio.run(ask())
    assert server.most_at_once == concurrency


def test_a_classifier_opens_again_in_another_loop(server):
    classifier = AsyncClassifier(server.options(concurrency=1))

    async def ask():
        async with classifier:
            return await classifier.logits(IMAGES)

    for _ in range(2):
        np.testing.assert_array_equal(asyncio.run(ask()), expected_logits(IMAGES))


def test_threads_share_a_client_and_its_bound(server):
    wrong = []

    def ask(shift):
        images, labels = np.roll(IMAGES, shift, axis=0), LABELS[-shift:] + LABELS[:-shift]
        if [prediction.label for prediction in classifier.classify(images)] != labels:
            wrong.append(shift)

    with connect(server, concurrency=2) as classifier, ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(1, 9)))
    assert not wrong
    assert len(server.batches) == 8 * 30
    assert server.most_at_once == 2


@pytest.mark.parametrize("kind", [Classifier, AsyncClassifier])
def test_no_more_is_read_than_may_be_held(server, kind):
    read = 0

    def counted():
        nonlocal read
        for image in IMAGES:
            read += 1
            yield image

    async def ask():
        async with connect(server, kind, concurrency=2) as classifier:
            return [read async for _ in classifier.stream(counted())]

    if kind is AsyncClassifier:
        ahead = asyncio.run(ask())
    else:
        with connect(server, concurrency=2) as classifier:
            ahead = [read for _ in classifier.stream(counted())]
    most = max(count - answered for answered, count in enumerate(ahead))
    assert 2 * 3 < most <= 4 * 3


def test_an_error_of_the_image_source_reaches_the_caller_and_the_client_still_works(server):
    def broken():
        yield from IMAGES[:40]
        raise KeyError("the camera")

    with connect(server) as classifier:
        with pytest.raises(KeyError, match="the camera"):
            list(classifier.stream(broken()))
        assert len(classifier.classify(IMAGES)) == 90


def test_a_classifier_works_after_an_abandoned_stream(server):
    async def leave():
        async with connect(server, AsyncClassifier) as classifier:
            async for _ in classifier.stream(IMAGES):
                break
            return [prediction.label for prediction in await classifier.classify(IMAGES)]

    with connect(server) as classifier:
        for _ in classifier.stream(IMAGES):
            break
        assert [prediction.label for prediction in classifier.classify(IMAGES)] == LABELS
    assert asyncio.run(leave()) == LABELS


def test_a_cancelled_request_gives_its_turn_to_the_next():
    holding = threading.Event()
    first = threading.Event()

    def hold(number):
        if number == 0:
            first.set()
            holding.wait(20)

    async def ask(url):
        async with AsyncClassifier(Options(url, concurrency=1)) as classifier:
            stuck = asyncio.create_task(classifier.classify(IMAGES[:1]))
            while not first.is_set():
                await asyncio.sleep(0.01)
            stuck.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stuck
            return [prediction.label for prediction in await classifier.classify(IMAGES[:4])]

    with StandIn(hold).serving("http") as stand_in:
        try:
            assert asyncio.run(ask(stand_in.url)) == LABELS[:4]
        finally:
            holding.set()
