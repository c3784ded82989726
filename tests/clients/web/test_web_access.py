import re

import pytest
from pictures.strokes import FORMS
from playwright.sync_api import Page, Request, expect
from web_parts import draw, settled, wait_until

pytestmark = pytest.mark.live

DARK = {"color_scheme": "dark"}
FOCUSABLE = "button, select, input, a, [tabindex]"
# Of the text and the first opaque ancestor.
COLOURS = """
element => {
    const colours = [getComputedStyle(element).color];
    while (getComputedStyle(element).backgroundColor === "rgba(0, 0, 0, 0)") element = element.parentElement;
    return [...colours, getComputedStyle(element).backgroundColor];
}
"""


def luminance(colour: str) -> float:
    """By WCAG 2.1."""
    levels = [int(level) / 255 for level in re.fullmatch(r"rgb\((\d+), (\d+), (\d+)\)", colour).groups()]
    linear = [level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4 for level in levels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(page: Page, selector: str) -> float:
    first, second = sorted(luminance(colour) for colour in page.locator(selector).first.evaluate(COLOURS))
    return (second + 0.05) / (first + 0.05)


def test_every_control_has_a_role_and_a_name(page: Page) -> None:
    for role, name in [("button", "Undo"), ("button", "Clear"), ("button", "Upload a picture"), ("combobox", "Model")]:
        expect(page.get_by_role(role, name=name, exact=True)).to_be_visible()
    expect(page.get_by_role("img", name="Drawing area")).to_have_accessible_description(re.compile("upload or paste"))
    expect(page.get_by_role("heading", level=1)).to_have_text("Draw a digit")
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    controls = [
        (node["role"]["value"], node["name"]["value"])
        for node in tree
        if not node["ignored"] and node["role"]["value"] in ("button", "combobox", "image", "textbox", "link", "list")
    ]
    assert len(controls) == 7  # four controls, two canvases, the bars
    assert all(name for _, name in controls)
    assert page.locator("html").get_attribute("lang") == "en"
    held = page.evaluate("[...document.querySelectorAll('*')].filter(e => getComputedStyle(e).touchAction !== 'auto')"
                         ".map(e => e.id)")  # fmt: skip
    assert held == ["paper"], "only the sheet keeps fingers from scrolling"


def test_a_screen_reader_hears_the_answer_and_reads_the_bars(page: Page) -> None:
    draw(page, FORMS[6][0])
    expect(page.locator("#spoken")).to_contain_text(re.compile(r"^6, with \d+\.\d %, says vitbn$"))
    assert page.get_by_role("status").filter(has_text="6, with").count() == 1
    expect(page.get_by_role("list", name="Probabilities")).to_match_aria_snapshot("- listitem: /6 \\d+\\.\\d %/")
    page.set_input_files("#file", __file__)
    expect(page.get_by_role("status").filter(has_text="expected PNG")).to_be_visible()


def test_the_keyboard_reaches_everything_and_shows_where_it_is(page: Page) -> None:
    order, choosers = [], []
    page.on("filechooser", lambda chooser: choosers.append(chooser))
    for _ in range(4):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        order.append(focused.get_attribute("id"))
        style = focused.evaluate("e => [getComputedStyle(e).outlineStyle, getComputedStyle(e).outlineWidth]")
        assert style == ["solid", "3px"]
    assert order == ["model", "undo", "clear", "upload"]
    assert page.locator(FOCUSABLE).count() == 5  # and the file's input
    page.keyboard.press("Enter")
    for _ in range(200):
        page.wait_for_timeout(50)
        if choosers:
            break
    assert len(choosers) == 1
    draw(page, FORMS[1][0])
    expect(page.locator("#digit")).to_have_text("1")
    page.locator("#clear").focus()
    page.keyboard.press("Space")
    expect(page.locator("#digit")).to_have_text("?")
    page.keyboard.press("Control+z")
    expect(page.locator("#digit")).to_have_text("1")
    page.locator("#model").focus()
    page.keyboard.press("ArrowUp")
    expect(page.locator("#model-version")).to_have_text("second, version 2")


@pytest.mark.parametrize("media", [{}, DARK], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(page: Page, media: dict) -> None:
    draw(page, FORMS[3][0])
    expect(page.locator("#digit")).to_have_text("3")
    settled(page)  # colours change gradually
    for selector in ("h1", "#hint", "#digit", "#remark", ".label", ".share", "dt", "dd", "button", "select", "label"):
        assert contrast(page, selector) >= 4.5, selector
    ground = luminance(page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor"))
    assert (ground < 0.05) == (media == DARK)


@pytest.mark.parametrize("media", [{}, DARK], ids=["light", "dark"])
def test_the_colours_of_the_screen_do_not_reach_the_model(page: Page) -> None:
    page.evaluate("""() => {
        const real = fetch;
        window.fetch = (path, options) => {
            window.sent = options?.body ?? window.sent;
            return real(path, options);
        };
    }""")
    draw(page, FORMS[1][0])
    expect(page.locator("#digit")).to_have_text("1")
    sent = page.evaluate("""async () => {
        const bitmap = await createImageBitmap(sent);
        const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
        context.drawImage(bitmap, 0, 0);
        return [bitmap.width, ...[[5, 5], [140, 140]].flatMap(([x, y]) => [...context.getImageData(x, y, 1, 1).data])];
    }""")
    assert sent == [280, 255, 255, 255, 255, 0, 0, 0, 255]


@pytest.mark.parametrize(("width", "height"), [(700, 400), (568, 320)])
def test_a_telephone_on_its_side_has_two_columns(page: Page, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    draw(page, FORMS[4][0])
    expect(page.locator("#digit")).to_have_text("4")
    sheet, digit, answer = (page.locator(part).bounding_box() for part in ("#paper", "#digit", "#answer"))
    assert sheet["x"] + sheet["width"] <= answer["x"]
    assert max(box["y"] + box["height"] for box in (sheet, digit)) <= height
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [280, 740])
def test_no_screen_is_too_narrow(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    draw(page, FORMS[8][0])
    expect(page.locator("#digit")).to_have_text("8")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator("#paper").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert box["width"] == pytest.approx(box["height"], abs=1)


@pytest.mark.parametrize("media", [{}, {"reduced_motion": "reduce"}], ids=["motion", "still"])
def test_nothing_moves_for_who_asks_so(page: Page, media: dict) -> None:
    moving = page.evaluate("[...document.querySelectorAll('*')]"
                           ".filter(e => parseFloat(getComputedStyle(e).transitionDuration) > 0).length")  # fmt: skip
    assert (moving == 0) == bool(media)


def test_foreign_content_is_blocked(page: Page, console: list[str], requests: list[Request]) -> None:
    page.evaluate("""() => {
        const image = new Image();
        image.src = "https://example.org/spy.png";
        document.body.append(image);
        const style = document.createElement("style");
        style.textContent = "body { display: none }";
        document.body.append(style);
        try { document.body.innerHTML = "<p>injected"; } catch (error) { window.blocked = String(error); }
    }""")
    wait_until(page, lambda: sum("Content Security Policy" in text for text in console) >= 2)
    assert "TrustedHTML" in page.evaluate("blocked")
    expect(page.locator("body")).to_be_visible()
    wait_until(page, lambda: [request.failure for request in requests if "example.org" in request.url] == ["csp"])
    console.clear()
