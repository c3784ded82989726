import base64
import io
import re
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from pictures.strokes import FORMS
from PIL import Image
from playwright.sync_api import BrowserContext, Page, Request, expect
from web_parts import Triton, draw, on_screen, running_page, settled, wait_until

from clients.preprocess import read_image, to_model_input
from models.data.not_digits import SHAPES

pytestmark = pytest.mark.live

DIGIT_PNG = Path(__file__).resolve().parents[3] / "digit.png"  # a 3
SEEN = """
canvas => Array.from(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data)
    .filter((_, index) => index % 4 === 0)
"""
INKED = """
canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return data.filter((level) => level > 0).length;
}
"""
LEVELS = """
canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const levels = data.filter((_, index) => index % 4 === 0);
    return [levels.reduce((a, b) => Math.min(a, b)), levels.reduce((a, b) => Math.max(a, b))];
}
"""
DATA_TRANSFER = """
([type, base64]) => {
    const transfer = new DataTransfer();
    const content = Uint8Array.from(atob(base64), (byte) => byte.charCodeAt(0));
    transfer.items.add(new File([content], "digit", { type }));
    return transfer;
}
"""
ANSWER = {"probability": 1, "labels": ["8", "9"], "probabilities": [0, 1], "model": "vitbn", "version": "1"}
ANSWER |= {"image": [[0, 255], [255, 0]], "preparation_ms": 1, "inference_ms": 1}


def seen(page: Page) -> np.ndarray:
    return np.array(page.locator("#seen").evaluate(SEEN), dtype=np.uint8).reshape(28, 28)


def expect_digit(page: Page, digit: str) -> None:
    expect(page.locator("#digit")).to_have_text(digit)


def test_every_digit_is_read(page: Page) -> None:
    read = {}
    for digit, forms in FORMS.items():
        draw(page, forms[0])
        with suppress(AssertionError):
            expect(page.locator("#digit")).to_have_text(str(digit), timeout=20_000)
        read[digit] = page.inner_text("#digit")
        page.get_by_role("button", name="Clear").click()
        expect_digit(page, "?")
    assert read == {digit: str(digit) for digit in FORMS}


def test_a_star_is_not_a_digit(page: Page) -> None:
    draw(page, SHAPES["star"])
    expect(page.locator("#digit")).to_have_text("not a digit")
    expect(page.locator("#remark")).to_have_text(re.compile(r"most like \d, \d+\.\d %"))
    page.get_by_role("button", name="Clear").click()
    draw(page, FORMS[4][0])
    expect_digit(page, "4")


def test_the_page_shows_probabilities_version_and_latencies(page: Page) -> None:
    draw(page, FORMS[4][0])
    expect_digit(page, "4")
    rows = page.locator("#bars li")
    assert rows.locator(".label").all_inner_texts() == [str(digit) for digit in range(10)]
    shares = [float(text.removesuffix(" %")) for text in rows.locator(".share").all_inner_texts()]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert max(shares) == shares[4] == float(page.inner_text("#remark").removesuffix(" %"))
    expect(page.locator("#bars .best")).to_have_count(1)
    track, fill = (page.locator(f"#bars .best .{part}") for part in ("track", "fill"))
    settled(page)
    right = [box["x"] + box["width"] for box in (track.bounding_box(), fill.bounding_box())]
    assert right[0] - right[1] == pytest.approx((1 - shares[4] / 100) * track.bounding_box()["width"], abs=1)
    assert page.inner_text("#model-version") == "vitbn, version 1"
    took_ms = [page.inner_text(f"#{name}") for name in ("inference", "preparation", "round-trip")]
    assert all(re.fullmatch(r"\d+\.\d ms", text) for text in took_ms)
    inference, preparation, round_trip = (float(text.split()[0]) for text in took_ms)
    assert 0 < inference + preparation <= round_trip


def test_an_uploaded_file_is_seen_as_the_command_line_sees_it(page: Page) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Upload a picture").click()
    chooser.value.set_files(DIGIT_PNG)
    expect_digit(page, "3")
    np.testing.assert_array_equal(seen(page), to_model_input(read_image(DIGIT_PNG))[0])
    page.get_by_role("button", name="Undo").click()
    expect_digit(page, "?")
    assert not seen(page).any()
    page.set_input_files("#file", DIGIT_PNG)  # the same again
    expect_digit(page, "3")


@pytest.mark.parametrize(
    ("media", "level"), [({}, 250), ({"color_scheme": "dark"}, 5)], ids=["light ink on light", "dark ink on dark"]
)
def test_a_digit_on_a_transparent_background_is_visible(page: Page, level: int) -> None:
    page.set_input_files("#file", {"name": "clear.png", "mimeType": "image/png", "buffer": transparent(level)})
    expect_digit(page, "3")
    settled(page)
    darkest, lightest = page.locator("#paper").evaluate(LEVELS)
    assert darkest < 20
    assert lightest > 235


def transparent(level: int) -> bytes:
    with Image.open(DIGIT_PNG) as opened:
        ink = np.asarray(opened.convert("L"))
    layers = np.full((*ink.shape, 4), level, dtype=np.uint8)
    layers[..., 3] = np.where(ink < 128, 255, 0)
    stream = io.BytesIO()
    Image.fromarray(layers).save(stream, "PNG")
    return stream.getvalue()


def test_several_digits_in_a_picture_are_counted(page: Page) -> None:
    with Image.open(DIGIT_PNG) as opened:
        digit = opened.convert("L")
    row = Image.new("L", (3 * digit.width, digit.height), 255)
    for number in range(3):
        row.paste(digit, (number * digit.width, 0))
    stream = io.BytesIO()
    row.save(stream, "PNG")
    page.set_input_files("#file", {"name": "row.png", "mimeType": "image/png", "buffer": stream.getvalue()})
    expect(page.locator("#remark")).to_contain_text("3 separate shapes read as one digit")
    draw(page, FORMS[4][2])
    expect_digit(page, "4")
    expect(page.locator("#remark")).not_to_contain_text("shapes")


def test_a_picture_that_is_dropped(page: Page) -> None:
    content = base64.b64encode(DIGIT_PNG.read_bytes()).decode()
    transfer = page.evaluate_handle(DATA_TRANSFER, ["image/png", content])
    page.dispatch_event("body", "dragover", {"dataTransfer": transfer})
    expect(page.locator("#sheet")).to_have_class("sheet dropping")
    page.dispatch_event("body", "drop", {"dataTransfer": transfer})
    expect_digit(page, "3")
    expect(page.locator("#sheet")).to_have_class("sheet")


def test_a_picture_from_the_clipboard(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.set_input_files("#file", DIGIT_PNG)
    expect_digit(page, "3")
    copied = page.evaluate("""async () => {
        const paper = document.getElementById("paper");
        const blob = await new Promise((resolve) => paper.toBlob(resolve, "image/png"));
        await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
        return blob.size;
    }""")
    assert copied > 0
    page.get_by_role("button", name="Clear").click()
    expect_digit(page, "?")
    page.keyboard.press("Control+V")
    expect_digit(page, "3")


def test_undo_goes_back_stroke_by_stroke_and_over_a_clear(page: Page) -> None:
    seven, bar = FORMS[7][2]
    draw(page, [seven])
    expect_digit(page, "7")
    before = seen(page)
    draw(page, [bar], height=0.2)
    wait_until(page, lambda: bool((seen(page) != before).any()))
    page.keyboard.press("Control+z")
    wait_until(page, lambda: bool((seen(page) == before).all()))
    page.get_by_role("button", name="Clear").click()
    expect_digit(page, "?")
    page.get_by_role("button", name="Undo").click()
    expect_digit(page, "7")
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+z")
    expect_digit(page, "?")
    expect(page.locator("#invitation")).to_be_visible()


def test_a_dot_is_no_digit(page: Page) -> None:
    box = page.locator("#paper").bounding_box()
    page.mouse.click(box["x"] + 100, box["y"] + 100)
    expect(page.locator("#undo")).to_have_attribute("aria-disabled", "false")
    expect(page.locator("#remark")).not_to_have_text("Nothing drawn yet")
    settled(page)
    assert page.locator("#paper").evaluate(INKED) > 0


def test_what_is_no_picture_is_refused_before_it_is_sent(page: Page, requests: list[Request], tmp_path: Path) -> None:
    page.set_input_files("#file", __file__)
    expect(page.locator("#note")).to_contain_text("test_web_page.py: expected PNG, JPEG")
    huge = tmp_path / "huge.png"
    huge.write_bytes(bytes(10_000_001))
    page.set_input_files("#file", huge)
    expect(page.locator("#note")).to_contain_text("huge.png: expected at most 10.0 MB, found 10.0 MB")
    assert not any("classify" in request.url for request in requests)
    page.set_input_files("#file", DIGIT_PNG)
    expect_digit(page, "3")
    expect(page.locator("#note")).to_be_hidden()


def test_a_picture_without_a_digit_gives_the_reason(page: Page) -> None:
    draw(page, FORMS[2][0])
    expect_digit(page, "2")
    page.set_input_files("#file", {"name": "torn.png", "mimeType": "image/png", "buffer": DIGIT_PNG.read_bytes()[:99]})
    expect(page.locator("#remark")).to_contain_text("expected a picture, found")
    expect_digit(page, "?")
    draw(page, FORMS[2][0])
    expect_digit(page, "2")


def test_another_model_answers_when_it_is_chosen(page: Page) -> None:
    select = page.get_by_label("Model", exact=True)
    assert [text.split()[0] for text in select.locator("option").all_inner_texts()] == ["second", "vitbn"]
    draw(page, FORMS[0][0])
    expect_digit(page, "0")
    assert page.inner_text("#model-version") == "vitbn, version 1"
    select.select_option("second")
    expect(page.locator("#model-version")).to_have_text("second, version 2")
    expect_digit(page, "0")


def test_an_old_answer_is_never_shown_and_one_request_is_under_way(page: Page) -> None:
    held: list = []
    page.route("**/api/classify*", lambda route: held.append(route))
    page.evaluate("""() => {
        window.shown = [];
        const digit = document.getElementById("digit");
        new MutationObserver(() => shown.push(digit.textContent)).observe(digit, { childList: true });
    }""")
    first, second = FORMS[5][1][:2]
    draw(page, [first])
    wait_until(page, lambda: len(held) == 1)
    draw(page, [second])
    draw(page, [second])
    page.wait_for_timeout(1000)
    assert len(held) == 1
    held[0].fulfill(json={**ANSWER, "label": "8"})
    wait_until(page, lambda: len(held) == 2)
    held[1].fulfill(json={**ANSWER, "label": "9"})
    expect_digit(page, "9")
    page.wait_for_timeout(500)
    assert len(held) == 2
    assert page.evaluate("shown") == ["9"]


def test_a_refusal_for_too_many_requests_passes(page: Page) -> None:
    refusals = []

    def refuse_once(route) -> None:
        if refusals:
            route.continue_()
        else:
            refusals.append(route)
            route.fulfill(status=429, json={"error": "too many requests"})

    page.route("**/api/classify*", refuse_once)
    draw(page, FORMS[1][0])
    expect(page.locator("#trouble")).to_contain_text("too many requests")
    expect_digit(page, "1")
    expect(page.locator("#trouble")).to_be_hidden()


@pytest.mark.parametrize(
    "context_options",
    [{"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "device_scale_factor": 3}],
    ids=["phone"],
)
def test_a_finger_draws_and_does_not_scroll(page: Page) -> None:
    touch = page.context.new_cdp_session(page)

    def send(kind: str, *points: np.ndarray) -> None:
        places = [{"x": float(x), "y": float(y)} for x, y in points]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})

    for path in on_screen(page, FORMS[7][0], height=0.7):
        send("touchStart", path[0])
        for start, end in pairwise(path):
            for share in (0.25, 0.5, 0.75, 1):
                send("touchMove", start + share * (end - start))
        send("touchEnd")
    expect_digit(page, "7")
    assert page.evaluate("scrollY") == 0
    assert page.locator("#paper").evaluate("canvas => canvas.width / canvas.clientWidth") == pytest.approx(3, abs=0.01)


def test_a_pen_that_is_pressed_draws_more_ink(page: Page) -> None:
    pen = page.context.new_cdp_session(page)
    inked = []
    for force in (0.1, 0.9):
        path = on_screen(page, FORMS[1][0])[0]
        for kind, (x, y) in (("mousePressed", path[0]), ("mouseMoved", path[1]), ("mouseReleased", path[1])):
            place = {"x": float(x), "y": float(y), "button": "left", "buttons": 1, "clickCount": 1}
            pen.send("Input.dispatchMouseEvent", {"type": kind, "pointerType": "pen", "force": force, **place})
        expect(page.locator("#undo")).to_have_attribute("aria-disabled", "false")
        settled(page)
        inked.append(page.locator("#paper").evaluate(INKED))
        page.keyboard.press("Control+z")
    assert inked[1] > 1.5 * inked[0] > 0


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
