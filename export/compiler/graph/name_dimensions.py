"""Names the free dimensions of a graph's inputs, so that shapes can be written as expressions in these names.

In: a graph as its file has it. Out: the same graph with a name or a size for every dimension of an input.
"""

from __future__ import annotations

import re
from collections.abc import Container

import onnx_ir as ir

from export.compiler.errors import NotSupported

SYMBOL = r"[A-Za-z_]\w*"
RESERVED = frozenset({"max", "min", "floor", "ceiling", "sqrt", "mod"})  # functions in symbolic expressions


def name_free_dimensions(graph: ir.Graph) -> None:
    """Names every free dimension of an input; some exporters write -1, 0 or ?."""
    taken = {_kept(dim) for value in graph.inputs if value.shape is not None for dim in value.shape.dims}
    plain = {name for name in taken if isinstance(name, str)}
    for value in graph.inputs:
        if value.shape is None or not isinstance(value.type, ir.TensorType):
            kind = value.type or "no type"
            raise NotSupported(f"input {value.name!r}: expected a tensor of known rank, found {kind}")
        dims = enumerate(value.shape.dims)
        value.shape = ir.Shape(
            [_kept(dim) or _sum(dim, plain) or _fresh(f"{value.name}_{axis}", taken) for axis, dim in dims]
        )


def _kept(dim: int | ir.SymbolicDim) -> int | str | None:
    """A size, or a name that the parser of expressions reads."""
    if isinstance(dim, int):
        return dim if dim > 0 else None
    readable = dim.value and re.fullmatch(SYMBOL, dim.value) and dim.value.lower() not in RESERVED
    return dim.value if readable else None


def _sum(dim: int | ir.SymbolicDim, known: Container[str]) -> str | None:
    """A sum of named sizes: optimum writes past_sequence_length + sequence_length for a mask."""
    parts = str(dim.value).split(" + ") if isinstance(dim, ir.SymbolicDim) else []
    return " + ".join(parts) if len(parts) > 1 and all(part in known for part in parts) else None


def _fresh(name: str, taken: set[int | str | None]) -> str:
    name = re.sub(r"\W", "_", name)
    name = name if re.fullmatch(SYMBOL, name) else f"dim_{name}"
    while name in taken:
        name += "_"
    taken.add(name)
    return name
