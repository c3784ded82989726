"""timm's `pretrained_cfg` as JSON, alone or in the config.json of a hub's folder.

Source: timm/data/config.py and transforms_factory.py. Of its keys only those of resolve_data_config change pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from common.framing import FILTERS, Framing
from export.errors import PublishError
from export.pictures.processor import Held, Processor, Size, centred

USUAL_CROP = 0.875
READ = frozenset(
    ("input_size", "test_input_size", "interpolation", "crop_pct", "test_crop_pct", "crop_mode", "mean", "std")
)
ABOUT = frozenset(
    (
        *("url", "file", "hf_hub_id", "hf_hub_filename", "source", "architecture", "tag", "custom_load", "notes"),
        *("min_input_size", "fixed_input_size", "num_classes", "label_offset", "label_names", "label_descriptions"),
        *("pool_size", "test_pool_size", "first_conv", "classifier", "license", "description", "origin_url"),
        *("paper_name", "paper_ids"),
    )
)


def read(source: str, given: Mapping[str, Any], network: Size | None) -> Processor:
    """Raises PublishError."""
    inner = given.get("pretrained_cfg", given)
    if not isinstance(inner, dict):
        raise PublishError(f"{source}: pretrained_cfg: expected an object, found {inner!r}")
    held = Held(source, inner, READ | ABOUT)
    size, tested = _size(held, "input_size"), _size(held, "test_input_size")
    crop = "crop_pct"
    if tested and network == tested != size:  # timm's sizes for the test set
        size, crop = tested, "test_crop_pct" if held.values.get("test_crop_pct") else crop
    if size is None:
        raise held.refusal("input_size", "channels, height and width", "none")
    share = held.number(crop, USUAL_CROP)
    if share > 1:
        raise held.refusal(crop, "a share of at most 1", share)
    mean, std = held.numbers("mean"), held.numbers("std", 0)
    return Processor(mean, std, _framing(held, size, share, mean), size)


def _size(held: Held, key: str) -> Size | None:
    value = held.values.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 3:
        raise held.refusal(key, "channels, height and width", repr(value))
    return held.side(key, value[1]), held.side(key, value[2])


def _framing(held: Held, size: Size, crop: float, mean: tuple[float, ...]) -> Framing:
    resample, mode = held.values.get("interpolation") or "bicubic", held.values.get("crop_mode") or "center"
    if resample not in FILTERS:
        raise held.refusal("interpolation", f"one of {', '.join(FILTERS)}", repr(resample))
    wide = math.floor(size[0] / crop), math.floor(size[1] / crop)
    if mode == "center":
        return centred(size, crop, resample)
    if mode == "squash":
        return Framing("squash", wide, resample, "timm")
    if mode == "border":
        return Framing("contain", wide, resample, "timm", tuple(round(255 * level) for level in mean))
    raise held.refusal("crop_mode", "one of center, squash, border", repr(mode))
