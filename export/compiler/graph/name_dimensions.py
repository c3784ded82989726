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
    """Names each free dimension of an input, in place. Some exporters write -1, 0 or ? instead of a name.

    Raises NotSupported for an input that is no tensor of known rank.
    """
    used = {_readable(dim) for value in graph.inputs if value.shape is not None for dim in value.shape.dims}
    names = {size for size in used if isinstance(size, str)}
    renamed: dict[str, str] = {}
    for value in graph.inputs:
        if value.shape is None or not isinstance(value.type, ir.TensorType):
            kind = value.type or "no type"
            raise NotSupported(f"input {value.name!r}: expected a tensor of known rank, found {kind}")
        dims: list[int | str] = []
        for axis, dim in enumerate(value.shape.dims):
            unreadable = _unreadable_name(dim) or f"{value.name}_{axis}"
            known = _readable(dim) or _sum(dim, names) or renamed.get(unreadable)
            dims.append(known or renamed.setdefault(unreadable, _unused_name(unreadable, used)))
        value.shape = ir.Shape(dims)


def _readable(dim: int | ir.SymbolicDim) -> int | str | None:
    """The dimension's size or name; None if the parser of symbolic expressions cannot read it."""
    if isinstance(dim, int):
        return dim if dim > 0 else None
    is_name = dim.value and re.fullmatch(SYMBOL, dim.value) and dim.value.lower() not in RESERVED
    return dim.value if is_name else None


def _unreadable_name(dim: int | ir.SymbolicDim) -> str | None:
    """A name that inputs may share, such as "batch size"; None for numbers and "?", which are none."""
    return dim.value if isinstance(dim, ir.SymbolicDim) and re.search(r"[^\W\d]", dim.value or "") else None


def _sum(dim: int | ir.SymbolicDim, names: Container[str]) -> str | None:
    """A sum of named dimensions, as optimum writes past_sequence_length + sequence_length for a mask; else None."""
    terms = str(dim.value).split(" + ") if isinstance(dim, ir.SymbolicDim) else []
    return " + ".join(terms) if len(terms) > 1 and all(term in names for term in terms) else None


def _unused_name(name: str, used: set[int | str | None]) -> str:
    """A name that the parser reads and that is not `used`; adds it to `used`."""
    name = re.sub(r"\W", "_", name)
    name = name if re.fullmatch(SYMBOL, name) else f"dim_{name}"
    while name in used or name.lower() in RESERVED:
        name += "_"
    used.add(name)
    return name
