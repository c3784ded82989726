"""The parameters of config.pbtxt from which clients and operators learn about a network.

In: manifests and samples of the served versions. Out: parameter -> text; None: the parameter must be absent.
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

# Absolute, of a float32 logit. A newer version may allow TF32 to older versions, which moves a logit of 10 by 0.005.
PROBE_TOLERANCE = 0.01


@dataclass(frozen=True)
class Version:
    """A served version. `sample`: None if its file is damaged."""

    manifest: Manifest
    sample: Sample | None


def config_parameters(manifest: Manifest) -> dict[str, str | None]:
    """The parameters of the default version; none for a network that clients cannot ask for classes."""
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
    """The parameter `probe`: JSON from which a prober, who has no files, asks the served versions and judges them.

    It has the highest version's sample image, zlib-compressed and base64, and the logits of every version; and the
    image of a version whose sample has another image. Below float32, or in `bfloat16`, processors round differently:
    the tolerance is null, and only the class must be right. None if no version has a sample.
    """
    samples = {
        number: version.sample for number, version in versions.items() if version.manifest.config and version.sample
    }
    if not samples:
        return None
    image, answers = samples[max(samples)].inputs[INPUT_NAME], dict[str, dict[str, Any]]()
    for number, sample in sorted(samples.items()):
        exact = versions[number].manifest.origin.precision == "fp32" and not bfloat16
        logits = sample.outputs[OUTPUT_NAME][0].tolist()
        answers[str(number)] = {"logits": logits, "tolerance": PROBE_TOLERANCE if exact else None}
        if not np.array_equal(sample.inputs[INPUT_NAME], image):
            answers[str(number)]["image"] = _compressed(sample.inputs[INPUT_NAME])
    return json.dumps({"image": _compressed(image), "answers": answers})


def _compressed(image: NDArray[np.generic]) -> str:
    return base64.b64encode(zlib.compress(image[0].tobytes(), 9)).decode()
