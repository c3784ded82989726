"""How much a network's logits speak for any of its classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def evidence(logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """(n, classes) -> (n,): log(sum(exp(logits - their mean))), low for pictures that show none of the classes.

    Liu et al., "Energy-based Out-of-distribution Detection", NeurIPS 2020, less the mean, which a training by softmax
    leaves open: a number that is added to all logits of a picture changes no probability.
    """
    exact = logits.astype(np.float64)
    return np.asarray(np.logaddexp.reduce(exact - exact.mean(axis=1, keepdims=True), axis=1))
