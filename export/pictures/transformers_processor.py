"""preprocessor_config.json of transformers.

Source: image_processing_backends.py of transformers 5 and the processors of its image classifiers. Processors with
steps of their own are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from common.framing import Framing
from export.pictures.processor import BYTE, Held, Processor, Size

PLAIN = ("ViT", "Pvt", "Siglip", "Segformer", "DINOv3ViT", "Beit")  # no crop unless they ask for it
CROPPING = ("DeiT", "CLIP", "Bit", "MobileNetV1", "MobileNetV2", "Levit", "MobileViT", "PoolFormer")
SHARED = ("ConvNext", "PoolFormer")  # with crop_pct
SQUARE = ("ViT", "Pvt", "Segformer", "DeiT", "Beit")  # of a size that is a single number
POOLFORMER_SHARE = 0.9  # where crop_pct is missing
TYPES = tuple(dict.fromkeys((*PLAIN, *CROPPING, *SHARED)))
CROPS = dict.fromkeys((*CROPPING, "Beit"), 224) | {"MobileViT": 256}  # where crop_size is missing
LARGE = 384  # from this side on ConvNext squashes
FILTERS = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # of Pillow and torchvision alike
UNROUNDED = ("DINOv3ViT",)  # resizes floats: only a filter without overshoot makes the same levels
TYPE_KEYS = ("image_processor_type", "feature_extractor_type")
READ = (
    *("do_resize", "size", "resample", "do_center_crop", "crop_size", "crop_pct", "do_rescale", "rescale_factor"),
    *("do_normalize", "image_mean", "image_std", "do_flip_channel_order", "default_to_square"),
)
ABOUT = (
    "processor_class",
    "do_convert_rgb",
    "do_flip_channels",  # an older name of do_flip_channel_order, which transformers does not read
    "do_reduce_labels",
    "reduce_labels",
    "image_seq_length",
    "_valid_processor_keys",
)
# Steps that are not made here: each must be absent, null, false or this.
NOT_MADE: Mapping[str, object] = {
    **dict.fromkeys(("do_pad", "pad_size", "size_divisor", "rescale_offset", "include_top")),
    **dict.fromkeys(("return_tensors", "input_data_format", "device", "disable_grouping", "do_thumbnail")),
    "data_format": "channels_first",
}


def read(source: str, given: Mapping[str, Any]) -> Processor:
    """Raises PublishError."""
    held = Held(source, given, {*TYPE_KEYS, *READ, *ABOUT, *NOT_MADE})
    kind = _kind(held)
    for key, allowed in NOT_MADE.items():
        if held.values.get(key) not in (None, False, allowed):
            raise held.refusal(key, "a step that is made here", repr(held.values[key]))
    framing, size = _framing(held, kind)
    if kind == "MobileViT" and held.flag("do_normalize", False):
        raise held.refusal("do_normalize", "false for MobileViT, whose processor never normalises", "true")
    if kind not in ("", "MobileViT") and held.flag("do_flip_channel_order", False):
        raise held.refusal("do_flip_channel_order", f"false for {kind}, whose processor never flips", "true")
    normalised = held.flag("do_normalize", kind != "MobileViT")
    mean, std = (held.numbers("image_mean"), held.numbers("image_std", 0)) if normalised else ((0.0,), (1.0,))
    factor = held.number("rescale_factor", BYTE) if held.flag("do_rescale", True) else 1.0
    return Processor(mean, std, framing, size, factor, held.flag("do_flip_channel_order", kind == "MobileViT"))


def _kind(held: Held) -> str:
    """Empty where none is named."""
    name = next((held.values[key] for key in TYPE_KEYS if held.values.get(key) is not None), None)
    if name is None:
        return ""
    kind = re.sub(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", str(name))
    if kind not in TYPES or kind == name:
        raise held.refusal(TYPE_KEYS[0], f"that of one of {', '.join(TYPES)}", repr(name))
    return kind


def _framing(held: Held, kind: str) -> tuple[Framing, Size]:
    """And the size of what it leaves."""
    if kind in SHARED and (shared := _shared(held, kind)):
        return shared
    if not kind and held.values.get("crop_pct") is not None:
        raise held.refusal("crop_pct", "an image_processor_type beside it", "none")
    cropped = held.flag("do_center_crop", kind in CROPPING)
    if kind == "Segformer" and cropped:
        raise held.refusal("do_center_crop", "false for Segformer, whose processor never crops", "true")
    crop = _crop(held, kind) if cropped else None
    if not held.flag("do_resize", True):
        if crop is None:
            raise held.refusal("do_resize", "true, or do_center_crop", "neither")
        return Framing("none", crop, "bilinear", "transformers"), crop
    square = held.flag("default_to_square", kind in SQUARE)
    if not kind and held.values.get("default_to_square") is None and type(held.values.get("size")) is int:
        raise held.refusal("size", "height and width, or a shortest_edge, without image_processor_type", "a number")
    fit, size = _size(held, "size", square)
    if kind == "Levit" and fit == "short side":
        size = (int(256 / 224 * size[0]),) * 2
    if crop is None and fit == "short side":
        raise held.refusal("do_center_crop", "true beside a shortest_edge, which leaves any width", "false")
    if crop is not None and (crop[0] > size[0] or crop[1] > size[1]):
        raise held.refusal("crop_size", f"at most the size {size[0]}x{size[1]}", f"{crop[0]}x{crop[1]}")
    return Framing(fit, size, _filter(held, kind), "transformers"), crop or size


def _shared(held: Held, kind: str) -> tuple[Framing, Size] | None:
    """Of crop_pct: the shorter side becomes the size divided by it. None for PoolFormer whose crop_pct is null."""
    usual = POOLFORMER_SHARE if kind == "PoolFormer" else None
    if not held.flag("do_resize", True) or (usual and held.values.get("crop_pct", usual) is None):
        return None
    fit, size = _size(held, "size", square=False)
    if fit == "squash" and (kind == "ConvNext" or size[0] != size[1]):
        raise held.refusal("size", "a shortest_edge", f"{size[0]}x{size[1]}")
    if kind == "ConvNext" and size[0] >= LARGE:
        wide, fit = size, "squash"
    else:
        share = held.number("crop_pct", usual)
        wide, fit = (int(size[0] / share),) * 2, "short side"
        if share > 1:
            raise held.refusal("crop_pct", "a share of at most 1", share)
    cropped = held.flag("do_center_crop", kind == "PoolFormer")
    if kind == "PoolFormer" and not cropped:
        raise held.refusal("do_center_crop", "true beside crop_pct, which leaves any width", "false")
    crop = _crop(held, kind) if cropped else size
    if (kind == "ConvNext" and crop != size) or max(crop) > wide[0]:
        raise held.refusal("crop_size", f"at most the size {size[0]}x{size[1]}", f"{crop[0]}x{crop[1]}")
    return Framing(fit, wide, _filter(held, kind), "transformers"), crop


def _crop(held: Held, kind: str) -> Size:
    usual = CROPS.get(kind)
    return (usual, usual) if usual and held.values.get("crop_size") is None else _size(held, "crop_size", True)[1]


def _size(held: Held, key: str, square: bool) -> tuple[Literal["squash", "short side"], Size]:
    value = held.values.get(key)
    if type(value) is int:
        side = held.side(key, value)
        return "squash" if square else "short side", (side, side)
    names = {name for name, each in value.items() if each is not None} if isinstance(value, dict) else set()
    if isinstance(value, dict) and names == {"height", "width"}:
        return "squash", (held.side(key, value["height"]), held.side(key, value["width"]))
    if isinstance(value, dict) and names == {"shortest_edge"} and key == "size":
        side = held.side(key, value["shortest_edge"])
        return "short side", (side, side)
    raise held.refusal(key, "height and width" + (", or a shortest_edge" if key == "size" else ""), repr(value))


def _filter(held: Held, kind: str) -> str:
    value = held.values.get("resample")
    if kind in UNROUNDED and value != 2:
        expected = f"2 (bilinear) for {kind}, whose processor resizes before it rounds"
        raise held.refusal("resample", expected, repr(value))
    if type(value) is not int or value not in FILTERS:
        names = ", ".join(f"{number} ({name})" for number, name in FILTERS.items())
        raise held.refusal("resample", f"one of {names}", repr(value))
    return FILTERS[value]
