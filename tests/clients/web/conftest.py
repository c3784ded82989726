import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect
from web_http import listening
from web_parts import CHROMIUM, PATIENCE_S, Triton, publish_shipped, running_browser, running_page

# Chromium's own words: a hint where a test reads a canvas, and an answer with an error's status.
OF_CHROMIUM = ("Canvas2D: Multiple readback", "Failed to load resource: the server responded with a status of ")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a browser test_browser.py says so, once for all."""
    if not Path(CHROMIUM).exists():
        config.hook.pytest_deselected(items=[item for item in items if "browser" in item.fixturenames])
        items[:] = [item for item in items if "browser" not in item.fixturenames]


@pytest.fixture(scope="session")
def triton(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Iterator[Triton]:
    """Version 1 of `vitbn` and version 2 of `second`."""

    def make(path: Path) -> None:
        publish_shipped(path, "second", "second", "vitbn")
        shutil.rmtree(path / "second/1")

    server = Triton(made_once("pages", make))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def page_url(triton: Triton) -> Iterator[str]:
    with running_page(triton.url, "--model", "vitbn") as url:
        yield url


@pytest.fixture(scope="session")
def address(triton: Triton) -> Iterator[str]:
    """HOST:PORT in this process, without a rate limit."""
    with listening(triton.url) as where:
        yield where


@pytest.fixture(scope="module")  # Playwright lets no other event loop into its thread
def browser() -> Iterator[Browser]:
    with running_browser() as started:
        yield started


@pytest.fixture(scope="module")
def shared_context(browser: Browser) -> Iterator[BrowserContext]:
    """Its first page stays open, so the process of the pages does."""
    opened = new_context(browser)
    first = opened.new_page()
    first.route("**", lambda route: route.fulfill(body=""))
    first.goto("http://127.0.0.1/")
    yield opened
    opened.close()


def new_context(browser: Browser, **options: object) -> BrowserContext:
    opened = browser.new_context(**{"viewport": {"width": 1120, "height": 760}, **options})
    opened.set_default_timeout(1000 * PATIENCE_S)
    return opened


@pytest.fixture
def context_options() -> dict[str, object]:
    """Of a test whose pages need a context of their own."""
    return {}


@pytest.fixture
def context(
    browser: Browser, shared_context: BrowserContext, context_options: dict[str, object]
) -> Iterator[BrowserContext]:
    if context_options:
        opened = new_context(browser, **context_options)
        yield opened
        opened.close()
    else:
        yield shared_context
        for page in shared_context.pages[1:]:
            page.close()


@pytest.fixture
def media() -> dict[str, object]:
    return {}


@pytest.fixture
def console() -> list[str]:
    """What the page's console says; a test that expects words there empties it."""
    return []


@pytest.fixture
def requests() -> list[Request]:
    """A blocked request's `failure` is "csp"."""
    return []


@pytest.fixture
def page(
    context: BrowserContext, media: dict[str, object], page_url: str, console: list[str], requests: list[Request]
) -> Iterator[Page]:
    """Throws nothing, writes nothing to the console itself, asks no other host."""
    opened = context.new_page()
    opened.emulate_media(**media)
    thrown: list[str] = []
    opened.on("console", lambda message: message.text.startswith(OF_CHROMIUM) or console.append(message.text))
    opened.on("pageerror", lambda error: thrown.append(str(error)))
    opened.on("request", lambda request: requests.append(request))
    opened.goto(page_url)
    expect(opened.locator("#model")).to_have_value("vitbn")
    yield opened
    assert (thrown, console) == ([], [])
    sent = [request.url for request in requests if request.failure != "csp"]
    assert {urlsplit(url).netloc for url in sent} == {urlsplit(page_url).netloc}
