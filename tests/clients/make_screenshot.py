"""Makes clients/web/screenshot.png: python tests/clients/make_screenshot.py"""

import io
import tempfile
from contextlib import ExitStack
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, expect
from web_parts import ROOT, draw, publish_shipped, running_browser, running_page

from serving.running import running_server

TARGET = ROOT / "clients" / "web" / "screenshot.png"
WINDOW = {"width": 1060, "height": 770}
FOUR = [[(0.18, 0), (0.02, 0.28), (0.1, 0.46), (0.35, 0.45), (0.55, 0.36)], [(0.55, 0.02), (0.56, 0.4), (0.52, 1)]]
COLOURS = 256


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        publish_shipped(Path(folder, "repository"), "vitbn")
        server = stack.enter_context(running_server(Path(folder, "repository")))
        url = stack.enter_context(running_page(server.http_url))
        browser = stack.enter_context(running_browser())
        picture = photograph(browser, url)
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS).save(TARGET, optimize=True)
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size / 1e3:.0f} kB")


def photograph(browser: Browser, url: str) -> bytes:
    page = browser.new_page(viewport=WINDOW, device_scale_factor=1.5, reduced_motion="reduce")
    page.goto(url)
    for _ in range(2):  # the first times include warm-up
        draw(page, FOUR, height=0.66)
        expect(page.locator("#digit")).to_have_text("4")
        page.wait_for_timeout(1000)
        picture = page.screenshot()
        page.get_by_role("button", name="Clear").click()
    return picture


if __name__ == "__main__":
    main()
