"""Reads a processor's JSON file, of transformers or timm, without these libraries.

In: the user's `--processor` file. Out: a `Processor`; PublishError for fields that are unknown, missing or
contradictory.
"""

from __future__ import annotations

import json
from pathlib import Path

from common.files import reason
from export.errors import PublishError
from export.pictures import timm_processor, transformers_processor
from export.pictures.processor import Processor, Size


def read_processor(file: Path, network: Size | None) -> Processor:
    """`network`: height and width that the network takes; None: free. Raises PublishError."""
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"))  # Windows writes a byte order mark
    except (OSError, ValueError, RecursionError) as error:
        raise PublishError(f"{file}: expected the JSON of a processor, found {reason(error)}") from error
    if not isinstance(content, dict):
        raise PublishError(f"{file}: expected the JSON object of a processor, found {type(content).__name__}")
    if "pretrained_cfg" in content or "input_size" in content:
        return timm_processor.read(file.name, content, network)
    if content.keys() & {"image_mean", "do_resize", "image_processor_type", "feature_extractor_type", "do_normalize"}:
        return transformers_processor.read(file.name, content)
    raise PublishError(
        f"{file}: expected preprocessor_config.json of transformers or timm's pretrained_cfg, found neither"
    )
