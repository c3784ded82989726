"""Reads timm's `pretrained_cfg`, which is a JSON file or a part of config.json.

In: the JSON object. Out: a `Processor`; PublishError for unknown keys and wrong values.
Source: timm/data/config.py and transforms_factory.py. Only the keys that resolve_data_config reads change pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from common.preprocessing_settings import FILTERS, Framing
from export.errors import PublishError
from export.pictures.processor import Processor, ProcessorJson, Size, centred

DEFAULT_CROP = 0.875
READ = frozenset(
    ("input_size", "test_input_size", "interpolation", "crop_pct", "test_crop_pct", "crop_mode", "mean", "std")
)
IGNORED = frozenset(
    (
        *("url", "file", "hf_hub_id", "hf_hub_filename", "source", "architecture", "tag", "custom_load", "notes"),
        *("min_input_size", "fixed_input_size", "num_classes", "label_offset", "label_names", "label_descriptions"),
        *("pool_size", "test_pool_size", "first_conv", "classifier", "license", "description", "origin_url"),
        *("paper_name", "paper_ids"),
    )
)


def read(source: str, content: Mapping[str, Any], network: Size | None) -> Processor:
    """`source`: the file's name, for errors. `network`: height and width that the network takes; None: free."""
    config = content.get("pretrained_cfg", content)
    if not isinstance(config, dict):
        raise PublishError(f"{source}: pretrained_cfg: expected an object, found {config!r}")
    fields = ProcessorJson(source, config, READ | IGNORED)
    size, test_size = _size(fields, "input_size"), _size(fields, "test_input_size")
    crop_key = "crop_pct"
    if test_size and network == test_size != size:  # timm evaluates some networks on larger pictures
        size, crop_key = test_size, "test_crop_pct" if fields.values.get("test_crop_pct") else crop_key
    if size is None:
        raise fields.refusal("input_size", "channels, height and width", "none")
    crop = fields.number(crop_key, DEFAULT_CROP)
    if crop > 1:
        raise fields.refusal(crop_key, "a share of at most 1", crop)
    mean, std = fields.numbers("mean"), fields.numbers("std", 0)
    return Processor(mean, std, _framing(fields, size, crop, mean), size)


def _size(fields: ProcessorJson, key: str) -> Size | None:
    """Height and width of a field with channels, height and width; None if it is missing."""
    value = fields.values.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 3:
        raise fields.refusal(key, "channels, height and width", repr(value))
    return fields.side(key, value[1]), fields.side(key, value[2])


def _framing(fields: ProcessorJson, size: Size, crop: float, mean: tuple[float, ...]) -> Framing:
    """`crop`: the share of the resized picture's sides that is cut from it."""
    resample, mode = fields.values.get("interpolation") or "bicubic", fields.values.get("crop_mode") or "center"
    if resample not in FILTERS:
        raise fields.refusal("interpolation", f"one of {', '.join(FILTERS)}", repr(resample))
    resized = math.floor(size[0] / crop), math.floor(size[1] / crop)
    if mode == "center":
        return centred(size, crop, resample)
    if mode == "squash":
        return Framing("squash", resized, resample, "timm")
    if mode == "border":
        return Framing("contain", resized, resample, "timm", tuple(round(255 * level) for level in mean))
    raise fields.refusal("crop_mode", "one of center, squash, border", repr(mode))
