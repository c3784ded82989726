from pathlib import Path

import pytest
from pictures.strokes import FORMS
from playwright.sync_api import BrowserContext, Page, expect
from web_parts import Triton, draw, running_page

pytestmark = pytest.mark.live

DIGIT_PNG = Path(__file__).resolve().parents[3] / "digit.png"  # a 3


def test_triton_stops_and_starts_again(page: Page, page_url: str, context: BrowserContext, triton: Triton) -> None:
    draw(page, FORMS[3][0])
    expect(page.locator("#digit")).to_have_text("3")
    triton.stop()
    try:
        expect(page.get_by_role("alert")).to_be_visible()
        expect(page.get_by_role("alert")).to_contain_text("No model answers")
        expect(page.locator("#reason")).to_contain_text(triton.url)
        expect(page.locator("#answer")).to_have_class("stale")
        page.get_by_role("button", name="Clear").click()
        draw(page, FORMS[7][0])
        late = context.new_page()
        late.goto(page_url)
        draw(late, FORMS[0][0])
        expect(late.get_by_role("alert")).to_be_visible()
        expect(late.locator("#remark")).to_have_text("Waiting for the server")
        uploading = context.new_page()
        uploading.goto(page_url)
        expect(uploading.get_by_role("alert")).to_be_visible()
        uploading.set_input_files("#file", DIGIT_PNG)
        expect(uploading.locator("#remark")).to_have_text("Waiting for the server")
        expect(uploading.locator("#note")).to_be_hidden()
    finally:
        triton.start()
    for opened, digit in ((page, "7"), (late, "0"), (uploading, "3")):
        expect(opened.get_by_role("alert")).to_be_hidden()
        expect(opened.locator("#digit")).to_have_text(digit)
        expect(opened.locator("#answer")).to_have_class("")


def test_the_program_behind_the_page_stops_and_starts_again(context: BrowserContext, triton: Triton) -> None:
    page = context.new_page()
    with running_page(triton.url) as url:
        page.goto(url)
        expect(page.locator("#model option")).to_have_count(2)
    draw(page, FORMS[4][0])
    expect(page.get_by_role("alert")).to_contain_text(url.removeprefix("http://"))
    with running_page(triton.url, "--port", url.rpartition(":")[2]):
        expect(page.get_by_role("alert")).to_be_hidden()
        expect(page.locator("#digit")).to_have_text("4")
