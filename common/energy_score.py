"""The evidence of logits: how much a network's answer supports any of its classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def evidence(logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Returns log(sum(exp(logits - their mean))) of each picture: logits (n, classes) -> (n,).

    It is low for pictures that show none of the classes. Source: Liu et al., "Energy-based Out-of-distribution
    Detection", NeurIPS 2020. The mean is subtracted because softmax ignores a constant added to all logits of a
    picture, so training leaves that constant arbitrary.
    """
    logits64 = logits.astype(np.float64)
    return np.asarray(np.logaddexp.reduce(logits64 - logits64.mean(axis=1, keepdims=True), axis=1))
