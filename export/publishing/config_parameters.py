"""What clients and operators read of a network of this project in the parameters of config.pbtxt.

In: manifests and samples. Out: parameter -> text; None: the version does not have it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.sample import Sample
from export.publishing.manifest import Manifest
from models.networks.config import INPUT_NAME, OUTPUT_NAME

# Of a float32 logit. A newer version may allow TF32 to older versions, which moves a logit of 10 by up to 0.005.
PROBE_TOLERANCE = 0.01


@dataclass(frozen=True)
class Version:
    """`sample` None: its file is damaged."""

    manifest: Manifest
    sample: Sample | None


def described(manifest: Manifest) -> dict[str, str | None]:
    """Empty for a network of another origin."""
    origin, network = manifest.origin, manifest.origin.network
    if network is None:
        return {}
    return {
        "model_config": network.config.to_json(),
        "rewrites": json.dumps(origin.rewrites),
        "max_abs_error": f"{network.max_abs_error:.3e}",
        "checkpoint_sha256": network.checkpoint_sha256,
        "test_accuracy": None if origin.accuracy is None else str(origin.accuracy),
        "temperature": None if network.temperature is None else str(network.temperature),
        "evidence_limit": None if network.evidence_limit is None else str(network.evidence_limit),
    }


def probe(versions: Mapping[int, Version], bfloat16: bool) -> str | None:
    """JSON: the highest version's image and each version's logits, for a probe without the files.

    A version with another image has it beside its logits. Below float32, and where the engine computes in `bfloat16`,
    processors differ: tolerance null, only the class counts.
    """
    samples = {number: each.sample for number, each in versions.items() if each.manifest.config and each.sample}
    if not samples:
        return None
    image, answers = samples[max(samples)].inputs[INPUT_NAME], dict[str, dict[str, Any]]()
    for number, sample in sorted(samples.items()):
        exact = versions[number].manifest.origin.precision == "fp32" and not bfloat16
        logits = sample.outputs[OUTPUT_NAME][0].tolist()
        answers[str(number)] = {"logits": logits, "tolerance": PROBE_TOLERANCE if exact else None}
        if not np.array_equal(sample.inputs[INPUT_NAME], image):
            answers[str(number)]["image"] = _packed(sample.inputs[INPUT_NAME])
    return json.dumps({"image": _packed(image), "answers": answers})


def _packed(image: NDArray[np.generic]) -> str:
    return base64.b64encode(zlib.compress(image[0].tobytes(), 9)).decode()
