"""Processors of transformers and timm, read without them: the same pixels, or one clear line."""

import json
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_image

from clients.images.prepare import prepare
from common.preprocessing_settings import Framing
from export.errors import PublishError
from export.pictures.processor import Processor
from export.pictures.processor_file import read_processor

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
USUAL = {"do_resize": True, "resample": 3, "image_mean": MEAN, "image_std": STD}
PHOTO = Image.fromarray(load_sample_image("china.jpg"))  # 640 x 427
PICTURES = {
    "wide": PHOTO,
    "tall, of odd sides": PHOTO.crop((101, 0, 340, 427)),
    "small": PHOTO.crop((200, 100, 261, 147)),
    "grey": PHOTO.convert("L"),
    "of a palette": PHOTO.convert("P"),
    "half transparent": Image.merge("RGBA", (*PHOTO.split(), PHOTO.getchannel("R"))),
}
HUGGING_FACE = {
    "ViTImageProcessor": {"size": {"height": 224, "width": 224}, "resample": 2},
    "DeiTImageProcessor": {"size": {"height": 256, "width": 256}, "crop_size": {"height": 224, "width": 224}},
    "CLIPImageProcessor": {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}},
    "BitImageProcessor": {"size": {"shortest_edge": 256}, "crop_size": {"height": 223, "width": 223}},
    "LevitImageProcessor": {"size": {"shortest_edge": 224}},
    "ConvNextImageProcessor": {"size": {"shortest_edge": 224}, "crop_pct": 0.875},
    "PoolFormerImageProcessor": {"size": {"shortest_edge": 224}, "crop_pct": 0.95},
    "SiglipImageProcessor": {"size": {"height": 96, "width": 128}},
    "MobileViTImageProcessor": {"size": {"shortest_edge": 288}, "crop_size": {"height": 256, "width": 256}},
    "MobileNetV2ImageProcessor": {"resample": 2},
    "PvtImageProcessor": {"resample": 1},
    "SegformerImageProcessor": {"size": {"height": 128, "width": 128}},
    "DINOv3ViTImageProcessor": {"size": {"height": 224, "width": 224}, "resample": 2},
}
PLAIN_SIZES = {"size": {"height": 64, "width": 48}, "crop_size": {"height": 40, "width": 32}, "resample": 2}
OF_TORCHVISION_ALONE = ("DINOv3ViTImageProcessor",)
ROUNDING = 1e-3  # levels, of float32
TIMM = {
    "center": {"input_size": [3, 224, 224], "crop_pct": 0.9},
    "whole": {"input_size": [3, 224, 224], "crop_pct": 1.0, "interpolation": "bilinear"},
    "odd": {"input_size": [3, 223, 223], "crop_pct": 0.875},
    "of two sides": {"input_size": [3, 256, 128], "crop_pct": 0.95},
    "squash": {"input_size": [3, 224, 224], "crop_pct": 0.95, "crop_mode": "squash"},
    "border": {"input_size": [3, 224, 224], "crop_pct": 1.0, "crop_mode": "border"},
    "border of one level": {"input_size": [3, 224, 224], "crop_pct": 1.0, "crop_mode": "border", "mean": [0.5]},
    "default": {"input_size": [3, 160, 160], "interpolation": "nearest"},
}


def library(name: str) -> Any:
    """With stubs for two operators of torchvision, whose wheel wants CUDA's libraries."""
    if find_spec(name) is None:  # importing it needs the stubs
        pytest.skip(f"{name} is not installed (extra `foreign`)")
    from benchmarks.measure.foreign_networks import library as stubbed

    return stubbed(name)


def read(folder: Path, content: object, network: tuple[int, int] | None = None) -> Processor:
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(content))
    return read_processor(path, network)


def ours(image: Image.Image, processor: Processor) -> NDArray[np.float64]:
    pixels = prepare(image, (3, *processor.size), "photo", None, processor.framing)
    return (pixels[::-1] if processor.bgr else pixels).astype(np.float64)


def _order_counts(image: Image.Image, framing: Framing) -> bool:
    """Pillow 13 begins with rows where that is less work, and its levels differ from torchvision's by up to 11."""
    return framing.fit == "squash" and image.width * framing.size[0] < framing.size[1] * image.height


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["", "Pil"])
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_pixels_are_those_of_transformers(name: str, backend: str, tmp_path: Path) -> None:
    transformers = library("transformers")
    if backend and name in OF_TORCHVISION_ALONE:
        pytest.skip("transformers has no such class")
    theirs = getattr(transformers, f"{name}{backend}")(**{"resample": 3, **HUGGING_FACE[name]})
    theirs.save_pretrained(tmp_path)
    processor = read_processor(tmp_path / "preprocessor_config.json", None)
    for what, image in PICTURES.items():
        if backend and _order_counts(image, processor.framing):
            continue
        opaque = transformers.image_transforms.convert_to_rgb(image, return_numpy=False)
        asked = theirs(opaque, do_normalize=False, return_tensors="np")
        levels = 255 * np.asarray(asked["pixel_values"][0], np.float64)
        errors = np.abs(ours(image, processor) - levels)
        assert errors.max() <= 2 + ROUNDING, what
        assert (errors > 1 + ROUNDING).mean() < 1e-4, what  # torchvision's weights have 16 bits, Pillow's 22


@pytest.mark.slow
@pytest.mark.parametrize("silent", [{}, {"do_center_crop": None}, {"do_rescale": None}, {"do_normalize": None}])
@pytest.mark.parametrize("name", ["ViT", "Beit", "DeiT", "CLIP", "Bit", "MobileNetV2", "Pvt"])
def test_a_flag_that_is_missing_or_null_means_what_it_does_in_transformers(
    name: str, silent: dict[str, None], tmp_path: Path
) -> None:
    numbers = {"image_mean": MEAN, "image_std": STD}
    processor = read(tmp_path, PLAIN_SIZES | numbers | silent | {"image_processor_type": f"{name}ImageProcessor"})
    theirs = getattr(library("transformers"), f"{name}ImageProcessor").from_pretrained(tmp_path)
    expected = theirs(PHOTO, return_tensors="np")["pixel_values"]
    found = processor.apply(ours(PHOTO, processor)[np.newaxis].astype(np.uint8), np.float32)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 2.01 * processor.factor / min(processor.std)


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMM)
def test_pixels_are_those_of_timm(name: str, tmp_path: Path) -> None:
    library("timm")
    data = import_module("timm.data")
    given = {"mean": MEAN, "std": STD, **TIMM[name]}
    transform = data.create_transform(**data.resolve_data_config({}, pretrained_cfg=given))
    processor = read(tmp_path, {"architecture": "vit", "pretrained_cfg": given})
    mean, std = (np.array(given[name]).reshape(-1, 1, 1) for name in ("mean", "std"))
    for what, image in PICTURES.items():
        levels = 255 * (transform(image.convert("RGB")).numpy().astype(np.float64) * std + mean)
        assert np.abs(ours(image, processor) - levels).max() <= 1 + ROUNDING, what


@pytest.mark.slow
def test_every_key_of_timms_own_configurations_is_known(tmp_path: Path) -> None:
    timm = library("timm")
    configurations = [timm.get_pretrained_cfg(name) for name in timm.list_pretrained()]
    assert len(configurations) > 1000
    for each in configurations:
        held = json.loads(json.dumps(each.to_dict()))
        if held.get("crop_pct") and held["crop_pct"] <= 1:
            assert read(tmp_path, held).framing


def test_a_processor_of_the_wrong_rounding_is_noticed() -> None:
    """A crop of an odd remainder tells the two roundings apart."""
    wide = Image.fromarray(np.tile(np.arange(200, dtype=np.uint8), (32, 1)))
    theirs, timms = (
        prepare(wide, (1, 32, 197), "photo", None, Framing("none", (32, 197), "bicubic", like))
        for like in ("transformers", "timm")
    )
    assert (theirs[0, 0, 0], timms[0, 0, 0]) == (1, 2)


OLDER: list[tuple[str, dict[str, Any], Any, int, int]] = [  # their keys, and what these mean today
    ("DeiT", {"size": 256, "crop_size": 224, "do_center_crop": True}, "squash", 256, 224),
    ("ViT", {"size": 224}, "squash", 224, 224),
    ("CLIP", {"size": 224, "crop_size": 224, "do_center_crop": True}, "short side", 224, 224),
    ("Beit", {"size": 224, "crop_size": 224, "do_center_crop": False}, "squash", 224, 224),
    ("DINOv3ViT", {"size": 256, "crop_size": 224, "do_center_crop": True, "resample": 2}, "squash", 256, 224),
    ("Levit", {"size": 224, "do_center_crop": True}, "short side", 256, 224),
    ("ConvNext", {"size": 224, "crop_pct": 0.875}, "short side", 256, 224),
    ("ConvNext", {"size": 384, "crop_pct": 0.875}, "squash", 384, 384),
    (
        "MobileViT",
        {"size": 288, "crop_size": 256, "do_center_crop": True, "do_flip_channels": True},
        "short side",
        288,
        256,
    ),
]


@pytest.mark.parametrize(("kind", "keys", "fit", "side", "crop"), OLDER)
def test_older_files_without_todays_keys_are_read(
    kind: str, keys: dict[str, Any], fit: Any, side: int, crop: int, tmp_path: Path
) -> None:
    found = read(tmp_path, {**USUAL, **keys, "feature_extractor_type": f"{kind}FeatureExtractor"})
    resample = "bilinear" if keys.get("resample") == 2 else "bicubic"
    assert (found.framing, found.size) == (Framing(fit, (side, side), resample, "transformers"), (crop, crop))
    assert found.bgr == (kind == "MobileViT")
    if kind == "ViT":
        assert read(tmp_path, {**USUAL, **keys, "default_to_square": True}) == found


def test_timms_size_for_tests_is_taken_where_the_network_has_it(tmp_path: Path) -> None:
    given = {"input_size": [3, 224, 224], "test_input_size": [3, 288, 288], "crop_pct": 0.9, "test_crop_pct": 1.0}
    given |= {"mean": MEAN, "std": STD}
    assert read(tmp_path, given, (288, 288)).framing == Framing("short side", (288, 288), "bicubic", "timm")
    assert read(tmp_path, given, (224, 224)).framing == Framing("short side", (248, 248), "bicubic", "timm")


SIZE = {"size": {"height": 224, "width": 224}}
CFG = {"input_size": [3, 224, 224], "mean": MEAN, "std": STD}


MOBILEVIT, VIT, SEGFORMER, POOLFORMER, CONVNEXT = (
    {"image_processor_type": f"{name}ImageProcessor"}
    for name in ("MobileViT", "ViT", "Segformer", "PoolFormer", "ConvNext")
)
SIDE = {"size": {"shortest_edge": 224}}


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"a": 1}, "found neither"),
        ([1], "expected the JSON object of a processor, found list"),
        (USUAL | SIZE | {"do_sharpen": True}, "do_sharpen: expected a key that is known, found another"),
        (USUAL | SIZE | {"do_pad": True}, "do_pad: expected a step that is made here, found True"),
        (
            USUAL | SIZE | {"image_processor_type": "PerceiverImageProcessor"},
            "image_processor_type: expected that of one",
        ),
        (USUAL | SIZE | {"image_processor_type": "ViT"}, "image_processor_type: expected that of one of ViT"),
        (USUAL | SIZE | {"resample": 0}, "resample: expected one of 1 (lanczos), 2 (bilinear), 3 (bicubic), found 0"),
        (
            USUAL | SIZE | {"image_processor_type": "DINOv3ViTImageProcessor"},
            "resample: expected 2 (bilinear) for DINOv3ViT, whose processor resizes before it rounds, found 3",
        ),
        (USUAL | SIZE | {"image_mean": [0.5, 0.5]}, "image_mean: expected one number, or one for each of three"),
        (
            USUAL | SIZE | {"image_std": [0.5, 0.5, 0]},
            "image_std: expected finite numbers above 0, found [0",
        ),
        (USUAL | SIZE | {"image_mean": float("nan")}, "image_mean: expected finite numbers, found nan"),
        (USUAL | SIZE | {"rescale_factor": "a"}, "rescale_factor: expected a number above 0, found 'a'"),
        (USUAL | SIZE | {"do_rescale": 1}, "do_rescale: expected true or false, found 1"),
        (USUAL, "size: expected height and width, or a shortest_edge, found None"),
        (USUAL | {"size": 224}, "size: expected height and width, or a shortest_edge, without"),
        (USUAL | {"size": {"shortest_edge": 224}}, "do_center_crop: expected true beside a shortest_edge"),
        (USUAL | {"size": {"shortest_edge": 224, "longest_edge": 300}}, "size: expected height and width"),
        (USUAL | SIZE | {"do_center_crop": True, "crop_size": 256}, "crop_size: expected at most the size 224x224"),
        (USUAL | {"do_resize": False}, "do_resize: expected true, or do_center_crop, found neither"),
        ({"do_resize": True, **SIZE, "resample": 2, "image_std": STD}, "image_mean: expected one number"),
        (USUAL | SIZE | {"crop_pct": 0.9}, "crop_pct: expected an image_processor_type beside it, found none"),
        (
            USUAL | SIZE | {**MOBILEVIT, "crop_size": 224, "do_normalize": True},
            "do_normalize: expected false for MobileViT",
        ),
        (USUAL | SIZE | {**VIT, "do_flip_channel_order": True}, "do_flip_channel_order: expected false for ViT"),
        (USUAL | SIZE | {**SEGFORMER, "do_center_crop": True}, "do_center_crop: expected false for Segformer"),
        (USUAL | SIDE | {**POOLFORMER, "do_center_crop": False}, "do_center_crop: expected true beside crop_pct"),
        (
            USUAL | SIDE | {**CONVNEXT, "crop_pct": 0.875, "do_center_crop": True, "crop_size": 200},
            "crop_size: expected at most the size 224x224, found 200x200",
        ),
        (CFG | {"crop_mode": "diagonal"}, "crop_mode: expected one of center, squash, border, found 'diagonal'"),
        (CFG | {"interpolation": "random"}, "interpolation: expected one of bicubic"),
        (CFG | {"crop_pct": 1.2}, "crop_pct: expected a share of at most 1, found 1.2"),
        (CFG | {"naflex": True}, "naflex: expected a key that is known"),
        (CFG | {"input_size": [3, 224]}, "input_size: expected channels, height and width"),
        ({"pretrained_cfg": 3}, "pretrained_cfg: expected an object, found 3"),
    ],
)
def test_what_is_unknown_or_contradictory_is_refused_in_a_line(content: object, found: str, tmp_path: Path) -> None:
    with pytest.raises(PublishError) as refusal:
        read(tmp_path, content)
    assert found in str(refusal.value)
    assert "preprocessor_config.json: " in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_poolformer_crops_a_tenth_where_its_file_does_not_say(tmp_path: Path) -> None:
    silent = USUAL | SIDE | POOLFORMER
    assert read(tmp_path, silent).framing == read(tmp_path, silent | {"crop_pct": 0.9}).framing
    assert read(tmp_path, silent).framing != read(tmp_path, silent | {"crop_pct": 1.0}).framing
    none = read(tmp_path, silent | {"crop_pct": None}).framing
    assert none == Framing("short side", (224, 224), "bicubic", "transformers")


def test_a_file_that_windows_wrote_is_read(tmp_path: Path) -> None:
    content = USUAL | SIDE | POOLFORMER
    expected = read(tmp_path, content)
    (tmp_path / "marked.json").write_text(json.dumps(content), encoding="utf-8-sig")
    assert read_processor(tmp_path / "marked.json", None) == expected


@pytest.mark.parametrize("spoil", [lambda path: path.write_text("{"), lambda path: path.write_bytes(b"\xff\xfe")])
def test_a_file_that_is_no_json_is_refused(spoil: Callable[[Path], object], tmp_path: Path) -> None:
    spoil(tmp_path / "processor.json")
    with pytest.raises(PublishError, match="expected the JSON of a processor"):
        read_processor(tmp_path / "processor.json", None)
