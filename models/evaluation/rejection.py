"""Fits the evidence below which a model rejects a picture as none of its classes.

In: logits of held-out pictures and of drawings of something else. Out: a threshold on `common.energy_score`.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from common.energy_score import evidence

MOST_LOST = 0.03  # of the held-out pictures
DRAWINGS = 2000


def fit_evidence_limit(held_out: Tensor, others: Tensor) -> dict[str, float]:
    """Logits (n, classes) of held-out pictures and of others -> entries of a checkpoint's metrics.

    The threshold maximises the rejected share of the others minus the rejected share of the held-out pictures, which is
    at most MOST_LOST.
    """
    held, other = (np.sort(evidence(logits.double().cpu().numpy())) for logits in (held_out, others))
    candidates = held[: 1 + int(MOST_LOST * len(held))]
    lost = np.searchsorted(held, candidates) / len(held)
    rejected = np.searchsorted(other, candidates) / len(other)
    best = int((rejected - lost).argmax())
    return {
        "evidence_limit": round(float(candidates[best]), 4),
        "rejected_held_out": float(lost[best]),
        "rejected_drawings": float(rejected[best]),
    }
