"""The page with a model of photos and a model that is none of ours, beside one of drawings."""

import io
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model
from pictures.strokes import FORMS
from PIL import Image
from playwright.sync_api import BrowserContext, Page, expect
from random_networks import saved
from web_parts import Triton, draw, publish_shipped, running_page

from export.checkpoint_to_version import export_checkpoint
from export.publishing.build_config_pbtxt import Serving
from export.publishing.foreign_artifact import foreign_artifact
from export.publishing.publish import publish
from models.data import FASHION_MNIST_LABELS
from models.networks.config import ModelConfig

pytestmark = pytest.mark.live

GARMENTS = ModelConfig(
    depth=1, labels=FASHION_MNIST_LABELS, preprocessing="photo", background="dark", fill=0.93, channels=3
)
SPECIES = replace(GARMENTS, num_classes=40, labels=tuple(f"a species with a long name, number {n}" for n in range(40)))
COLOURS = """
canvas => Array.from(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data)
    .filter((_, index) => index % 4 < 3)
"""


@pytest.fixture(scope="module")
def photos_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("photos")
    repository = folder / "repository"
    publish_shipped(repository, "digits")
    for name, config in (("garments", GARMENTS), ("species", SPECIES)):
        checkpoint = saved(folder / f"{name}.safetensors", config)
        publish(repository, name, export_checkpoint(checkpoint).artifact, Serving(threads=1, max_batch=8))
    double = parse_model('<ir_version: 9, opset_import: ["": 20]> a (float[n, 4] x) => (float[n, 4] y) {y = Add(x, x)}')
    onnx.save(double, folder / "foreign.onnx")
    publish(repository, "foreign", foreign_artifact(folder / "foreign.onnx"))
    triton = Triton(repository)
    triton.start()
    with running_page(triton.url) as url:
        yield url
    triton.stop()


@pytest.fixture
def photos(context: BrowserContext, photos_url: str) -> Page:
    page = context.new_page()
    page.goto(photos_url)
    expect(page.locator("#model")).to_have_value("digits")
    page.locator("#model").select_option("garments")
    return page


def shirt() -> tuple[bytes, np.ndarray]:
    """A blue square on white as a PNG, and its pixels (28, 28, 3)."""
    pixels = np.full((28, 28, 3), 255, np.uint8)
    pixels[1:27, 1:27] = (20, 40, 200)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue(), pixels


def test_a_model_of_photos_takes_an_upload_and_tells_of_its_inversion(photos: Page) -> None:
    content, pixels = shirt()
    expect(photos.get_by_role("heading", name="Show a picture")).to_be_visible()
    expect(photos.locator("#remark")).to_have_text("No picture yet")
    photos.set_input_files("#file", {"name": "shirt.png", "mimeType": "image/png", "buffer": content})
    expect(photos.locator("#bars li")).to_have_count(10)
    expect(photos.locator("#note")).to_contain_text("inverted: its background is light")
    assert photos.locator("#digit").inner_text() in FASHION_MNIST_LABELS
    seen = np.array(photos.locator("#seen").evaluate(COLOURS), np.uint8).reshape(28, 28, 3)
    np.testing.assert_array_equal(seen, 255 - pixels)


def test_the_page_says_why_a_model_is_left_out(photos: Page) -> None:
    expect(photos.locator("#left-out")).to_have_text("foreign: its parameters do not describe a classifier")
    assert photos.locator("#model option").count() == 3


def test_of_many_classes_the_most_probable_get_a_bar(photos: Page) -> None:
    expect(photos.locator("#bars .label")).to_have_text(FASHION_MNIST_LABELS)
    photos.locator("#model").select_option("species")
    expect(photos.locator("#bars li")).to_have_count(0)
    photos.set_input_files("#file", {"name": "shirt.png", "mimeType": "image/png", "buffer": shirt()[0]})
    expect(photos.locator("#classes")).to_have_text("The 10 most probable of 40 classes")
    shares = [float(share.removesuffix(" %")) for share in photos.locator("#bars .share").all_inner_texts()]
    assert len(shares) == 10
    assert shares == sorted(shares, reverse=True)
    assert photos.locator("#bars .label").first.inner_text() == photos.locator("#digit").inner_text()
    assert photos.locator("#remark").inner_text() == f"{shares[0]:.1f} %"
    assert photos.locator("#remark").bounding_box()["height"] < 50  # a single line, below the long name


def test_strokes_are_for_models_of_drawings(photos: Page) -> None:
    draw(photos, FORMS[4][0])
    expect(photos.locator("#remark")).to_have_text("No picture yet")
    photos.locator("#model").select_option("digits")
    expect(photos.get_by_role("heading", name="Draw a digit")).to_be_visible()
    draw(photos, FORMS[4][0])
    expect(photos.locator("#digit")).to_have_text("4")
    photos.locator("#model").select_option("garments")
    expect(photos.locator("#remark")).to_have_text("No picture yet")
    photos.locator("#model").select_option("digits")
    expect(photos.locator("#digit")).to_have_text("4")
