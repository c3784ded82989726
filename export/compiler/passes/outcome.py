"""The signature of a pass.

In: a prepared model, which the pass changes in place, and the sizes of free dimensions at which costs are counted.
Out: `Outcome`. A pass may leave nodes that nothing reads, and values without shapes: the driver then calls `settle`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.errors import Site


@dataclass(frozen=True)
class Outcome:
    """`sites`: the places that the pass rewrote; without any the model is as before. `refusals`: where it stopped."""

    sites: tuple[Site, ...] = ()
    refusals: tuple[Site, ...] = ()


Pass = Callable[[ir.Model, Mapping[str, int]], Outcome]
