"""The signature of all passes.

In: a prepared model, which the pass changes in place, and the sizes of free dimensions at which costs are counted.
Out: `Outcome`. A pass may leave unread nodes, and new values without shapes: the driver calls `settle` after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.errors import Site


@dataclass(frozen=True)
class Outcome:
    """Without `sites` the model is as it was."""

    sites: tuple[Site, ...] = ()
    refusals: tuple[Site, ...] = ()


Pass = Callable[[ir.Model, Mapping[str, int]], Outcome]
