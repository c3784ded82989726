"""A processor's JSON, of transformers or timm.

In: the user's `--processor` file. Out: a `Processor`; PublishError for what is unknown, missing or contradictory.
Imports neither of the libraries.
"""

from __future__ import annotations

import json
from pathlib import Path

from common.files import reason
from export.errors import PublishError
from export.pictures import timm_processor, transformers_processor
from export.pictures.processor import Processor, Size


def read_processor(file: Path, network: Size | None) -> Processor:
    """`network`: height and width that it takes; None: free. Raises PublishError."""
    try:
        held = json.loads(file.read_text(encoding="utf-8-sig"))  # Windows writes a mark first
    except (OSError, ValueError, RecursionError) as error:
        raise PublishError(f"{file}: expected the JSON of a processor, found {reason(error)}") from error
    if not isinstance(held, dict):
        raise PublishError(f"{file}: expected the JSON object of a processor, found {type(held).__name__}")
    if "pretrained_cfg" in held or "input_size" in held:
        return timm_processor.read(file.name, held, network)
    if held.keys() & {"image_mean", "do_resize", "image_processor_type", "feature_extractor_type", "do_normalize"}:
        return transformers_processor.read(file.name, held)
    raise PublishError(
        f"{file}: expected preprocessor_config.json of transformers or timm's pretrained_cfg, found neither"
    )
