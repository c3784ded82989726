"""Reads preprocessor_config.json of transformers.

In: the JSON object. Out: a `Processor`; PublishError for unknown keys, wrong values, and processors of a type with
steps that are not listed here. Source: image_processing_backends.py of transformers 5, and the processors of its image
classifiers, whose defaults differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from common.preprocessing_settings import Framing
from export.pictures.processor import BYTE, Processor, ProcessorJson, Size

NOT_CROPPING = ("ViT", "Pvt", "Siglip", "Segformer", "DINOv3ViT", "Beit")  # unless do_center_crop is true
CROPPING = ("DeiT", "CLIP", "Bit", "MobileNetV1", "MobileNetV2", "Levit", "MobileViT", "PoolFormer")
WITH_CROP_PCT = ("ConvNext", "PoolFormer")
SQUARE = ("ViT", "Pvt", "Segformer", "DeiT", "DINOv3ViT", "Beit")  # a size that is a single number means both sides
POOLFORMER_CROP = 0.9  # the default of crop_pct
TYPES = tuple(dict.fromkeys((*NOT_CROPPING, *CROPPING, *WITH_CROP_PCT)))
DEFAULT_CROPS = dict.fromkeys((*CROPPING, "Beit"), 224) | {"MobileViT": 256}  # sides in pixels
LARGE = 384  # pixels; from this side on ConvNext squashes instead of cropping
FILTERS = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # the numbers of Pillow
UNROUNDED = ("DINOv3ViT",)  # resizes floats: only a filter without overshoot makes the same levels as clients do
TYPE_KEYS = ("image_processor_type", "feature_extractor_type")
READ = (
    *("do_resize", "size", "resample", "do_center_crop", "crop_size", "crop_pct", "do_rescale", "rescale_factor"),
    *("do_normalize", "image_mean", "image_std", "do_flip_channel_order", "default_to_square"),
)
IGNORED = (
    "processor_class",
    "do_convert_rgb",
    "do_flip_channels",  # an older name of do_flip_channel_order, which transformers does not read
    "do_reduce_labels",
    "reduce_labels",
    "image_seq_length",
    "_valid_processor_keys",
)
# Steps that clients do not make: a field must be absent, null, false or as here.
NOT_SUPPORTED: Mapping[str, object] = {
    **dict.fromkeys(("do_pad", "pad_size", "size_divisor", "rescale_offset", "include_top")),
    **dict.fromkeys(("return_tensors", "input_data_format", "device", "disable_grouping", "do_thumbnail")),
    "data_format": "channels_first",
}


def read(source: str, content: Mapping[str, Any]) -> Processor:
    """`source`: the file's name, for errors."""
    fields = ProcessorJson(source, content, {*TYPE_KEYS, *READ, *IGNORED, *NOT_SUPPORTED})
    kind = _kind(fields)
    for key, allowed in NOT_SUPPORTED.items():
        if fields.values.get(key) not in (None, False, allowed):
            raise fields.refusal(key, "a step that is made here", repr(fields.values[key]))
    framing, size = _framing(fields, kind)
    if kind == "MobileViT" and fields.flag("do_normalize", False):
        raise fields.refusal("do_normalize", "false for MobileViT, whose processor never normalises", "true")
    if kind not in ("", "MobileViT") and fields.flag("do_flip_channel_order", False):
        raise fields.refusal("do_flip_channel_order", f"false for {kind}, whose processor never flips", "true")
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if fields.flag("do_normalize", kind != "MobileViT"):
        mean, std = fields.numbers("image_mean"), fields.numbers("image_std", 0)
    factor = fields.number("rescale_factor", BYTE) if fields.flag("do_rescale", True) else 1.0
    return Processor(mean, std, framing, size, factor, fields.flag("do_flip_channel_order", kind == "MobileViT"))


def _kind(fields: ProcessorJson) -> str:
    """The processor's type, such as "ViT"; empty if the file names no type."""
    name = next((fields.values[key] for key in TYPE_KEYS if fields.values.get(key) is not None), None)
    if name is None:
        return ""
    kind = re.sub(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", str(name))
    if kind not in TYPES or kind == name:
        raise fields.refusal(TYPE_KEYS[0], f"that of one of {', '.join(TYPES)}", repr(name))
    return kind


def _framing(fields: ProcessorJson, kind: str) -> tuple[Framing, Size]:
    """How a picture is resized, and the size that is cut from its middle."""
    if kind in WITH_CROP_PCT and (by_share := _framing_by_share(fields, kind)):
        return by_share
    if not kind and fields.values.get("crop_pct") is not None:
        raise fields.refusal("crop_pct", "an image_processor_type beside it", "none")
    cropped = fields.flag("do_center_crop", kind in CROPPING)
    if kind == "Segformer" and cropped:
        raise fields.refusal("do_center_crop", "false for Segformer, whose processor never crops", "true")
    crop = _crop(fields, kind) if cropped else None
    if not fields.flag("do_resize", True):
        if crop is None:
            raise fields.refusal("do_resize", "true, or do_center_crop", "neither")
        return Framing("none", crop, "bilinear", "transformers"), crop
    square = fields.flag("default_to_square", kind in SQUARE)
    if not kind and fields.values.get("default_to_square") is None and type(fields.values.get("size")) is int:
        raise fields.refusal("size", "height and width, or a shortest_edge, without image_processor_type", "a number")
    fit, size = _size(fields, "size", square)
    if kind == "Levit" and fit == "short side":
        size = (int(256 / 224 * size[0]),) * 2
    if crop is None and fit == "short side":
        raise fields.refusal("do_center_crop", "true beside a shortest_edge, which leaves any width", "false")
    if crop is not None and (crop[0] > size[0] or crop[1] > size[1]):
        raise fields.refusal("crop_size", f"at most the size {size[0]}x{size[1]}", f"{crop[0]}x{crop[1]}")
    return Framing(fit, size, _filter(fields, kind), "transformers"), crop or size


def _framing_by_share(fields: ProcessorJson, kind: str) -> tuple[Framing, Size] | None:
    """As `_framing`, for types with crop_pct: the shorter side becomes the size divided by crop_pct.

    None if nothing is resized, or PoolFormer's crop_pct is null.
    """
    default = POOLFORMER_CROP if kind == "PoolFormer" else None
    if not fields.flag("do_resize", True) or (default and fields.values.get("crop_pct", default) is None):
        return None
    fit, size = _size(fields, "size", square=False)
    if fit == "squash" and (kind == "ConvNext" or size[0] != size[1]):
        raise fields.refusal("size", "a shortest_edge", f"{size[0]}x{size[1]}")
    if kind == "ConvNext" and size[0] >= LARGE:
        resized, fit = size, "squash"
    else:
        share = fields.number("crop_pct", default)
        resized, fit = (int(size[0] / share),) * 2, "short side"
        if share > 1:
            raise fields.refusal("crop_pct", "a share of at most 1", share)
    cropped = fields.flag("do_center_crop", kind == "PoolFormer")
    if kind == "PoolFormer" and not cropped:
        raise fields.refusal("do_center_crop", "true beside crop_pct, which leaves any width", "false")
    crop = _crop(fields, kind) if cropped else size
    if (kind == "ConvNext" and crop != size) or max(crop) > resized[0]:
        raise fields.refusal("crop_size", f"at most the size {size[0]}x{size[1]}", f"{crop[0]}x{crop[1]}")
    return Framing(fit, resized, _filter(fields, kind), "transformers"), crop


def _crop(fields: ProcessorJson, kind: str) -> Size:
    """Height and width of crop_size, or the type's default."""
    default = DEFAULT_CROPS.get(kind)
    if default and fields.values.get("crop_size") is None:
        return default, default
    return _size(fields, "crop_size", square=True)[1]


def _size(fields: ProcessorJson, key: str, square: bool) -> tuple[Literal["squash", "short side"], Size]:
    """Whether both sides are resized or the shorter, and to what size. `square`: a single number means both."""
    value = fields.values.get(key)
    if type(value) is int:
        side = fields.side(key, value)
        return "squash" if square else "short side", (side, side)
    names = {name for name, side in value.items() if side is not None} if isinstance(value, dict) else set()
    if isinstance(value, dict) and names == {"height", "width"}:
        return "squash", (fields.side(key, value["height"]), fields.side(key, value["width"]))
    if isinstance(value, dict) and names == {"shortest_edge"} and key == "size":
        side = fields.side(key, value["shortest_edge"])
        return "short side", (side, side)
    raise fields.refusal(key, "height and width" + (", or a shortest_edge" if key == "size" else ""), repr(value))


def _filter(fields: ProcessorJson, kind: str) -> str:
    """The name of the resampling filter."""
    value = fields.values.get("resample")
    if kind in UNROUNDED and value != 2:
        expected = f"2 (bilinear) for {kind}, whose processor resizes before it rounds"
        raise fields.refusal("resample", expected, repr(value))
    if type(value) is not int or value not in FILTERS:
        names = ", ".join(f"{number} ({name})" for number, name in FILTERS.items())
        raise fields.refusal("resample", f"one of {names}", repr(value))
    return FILTERS[value]
