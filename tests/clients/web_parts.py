import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
from playwright.sync_api import Browser, Page, expect, sync_playwright

from serving import local_server
from serving.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
MISSING = f"Chromium is not at {CHROMIUM}, so no test of the page runs: apt-get install chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGUMENTS += ["--disable-component-update", "--disable-sync"]
ARGUMENTS += ["--process-per-site"]  # a page in a process of its own costs a second of processor time
PATIENCE_S = 60.0
expect.set_options(timeout=1000 * PATIENCE_S)


def publish_shipped(repository: Path, *names: str) -> None:
    """Small batches: each instance warms up with its largest."""
    from export.checkpoint_to_version import export_checkpoint
    from export.publishing.build_config_pbtxt import Serving
    from export.publishing.publish import publish
    from models.catalog import shipped

    exported = export_checkpoint(shipped("vitbn"))
    for name in names:
        publish(repository, name, exported.artifact, Serving(threads=1, max_batch=8))


class Triton:
    """On ports that survive restarts."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._ports = free_ports(3)
        self._running = ExitStack()
        self.url = f"127.0.0.1:{self._ports[0]}"

    def start(self) -> None:
        with mock.patch.object(local_server, "free_ports", return_value=self._ports):
            complete = ["--disable-auto-complete-config"]
            self._running.enter_context(local_server.running_server(self._repository, complete))

    def stop(self) -> None:
        self._running.close()


@contextmanager
def running_page(triton_url: str, *options: str) -> Iterator[str]:
    command = [sys.executable, ROOT / "clients/web/app.py", "--port", "0", "--url", triton_url, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("Draw at http://127.0.0.1:"), line
            yield line.split()[2]
        finally:
            process.terminate()


@contextmanager
def running_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


def draw(page: Page, form: list, height: float = 0.6) -> None:
    """Draws one of `FORMS`, `height` of the sheet high."""
    for path in on_screen(page, form, height):
        page.mouse.move(*path[0])
        page.mouse.down()
        for point in path[1:]:
            page.mouse.move(*point)
        page.mouse.up()


def settled(page: Page) -> None:
    page.evaluate("""async () => {
        await Promise.all(document.getAnimations().map((animation) => animation.finished));
        for (const _ of [1, 2]) await new Promise(requestAnimationFrame);
    }""")


def wait_until(page: Page, holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"not so after {PATIENCE_S:g} s"
        page.wait_for_timeout(20)


def on_screen(page: Page, form: list, height: float = 0.6) -> list[np.ndarray]:
    """Strokes in CSS pixels, (n, 2)."""
    paths = [along(stroke) for stroke in form]
    every = np.concatenate(paths)
    middle = (every.min(axis=0) + every.max(axis=0)) / 2
    box = page.locator("#paper").bounding_box()
    corner, side = np.array([box["x"], box["y"]]), box["width"]
    return [corner + side * ((path - middle) * height + 0.5) for path in paths]


def along(stroke: list | tuple, steps: int = 5) -> np.ndarray:
    """Points (n, 2). A tuple: straight lines; a list: a curve of Catmull and Rom, 1974."""
    points = np.array(stroke, dtype=float)
    if isinstance(stroke, tuple):
        return points
    padded = np.concatenate([points[:1], points, points[-1:]])
    t = np.linspace(0, 1, steps, endpoint=False)[:, None]
    pieces = [
        start + (t * (end - before) + t**2 * (2 * before - 5 * start + 4 * end - after)) / 2
        + t**3 * (3 * start - before - 3 * end + after) / 2
        for before, start, end, after in zip(padded, padded[1:], padded[2:], padded[3:], strict=False)
    ]  # fmt: skip
    return np.concatenate([*pieces, points[-1:]])
