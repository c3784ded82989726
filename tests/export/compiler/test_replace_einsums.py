"""An Einsum that is a product of two matrices becomes a MatMul; another stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from foreign_networks import check_equal, parse
from numpy.typing import NDArray

from export.compiler.pipeline import prepared

RNG = np.random.default_rng(0)

Array = NDArray[Any]

EINSUMS = [  # equation, shapes, the operators that replace it
    ("bnc,chd->bnhd", "b, n, 4", "4, 2, 3", ["MatMul", "Reshape"]),  # Keras: heads from channels
    ("bnhd,hdc->bnc", "b, n, 2, 3", "2, 3, 4", ["Reshape", "MatMul"]),
    ("bnhd,hdc->cbn", "b, n, 2, 3", "2, 3, 4", ["Reshape", "MatMul", "Transpose"]),
    ("hcd,bnc->bnhd", "2, 4, 3", "b, n, 4", ["MatMul", "Reshape"]),  # the weight first
    ("bihd,bjhd->bhij", "b, n, 2, 3", "b, n, 2, 3", ["Transpose", "Transpose", "MatMul"]),
    ("bhij,bjhd->bihd", "b, 2, n, n", "b, n, 2, 3", ["Transpose", "MatMul", "Transpose"]),
    ("nd,md->mn", "n, 3", "5, 3", ["MatMul", "Transpose"]),
    ("...d,de->...e", "b, n, 3", "3, 4", ["MatMul"]),
    ("...nd, ...md -> ...mn", "b, n, 3", "b, n, 3", ["Transpose", "MatMul", "Transpose"]),
    ("...d,...d->...", "b, n, 3", "b, n, 3", ["Einsum"]),
    ("bnd,bnd->bn", "b, n, 3", "b, n, 3", ["Einsum"]),
    ("bnd,e->bne", "b, n, 3", "4", ["Einsum"]),
    ("bhid,bjd->bhij", "b, 2, n, 3", "b, n, 3", ["Einsum"]),
    ("bnd,end->be", "b, n, 3", "4, n, 3", ["Einsum"]),
    ("bnd,de->be", "b, n, 3", "3, 4", ["Einsum"]),
]


@pytest.mark.parametrize(("equation", "left", "right", "operators"), EINSUMS)
def test_an_einsum_that_is_a_product_becomes_a_matmul(
    equation: str, left: str, right: str, operators: list[str]
) -> None:
    """An operand with free dimensions is an input, another a weight."""

    def arrays(sizes: dict[str, int]) -> dict[str, Array]:
        dims = {name: [sizes.get(dim) or int(dim) for dim in shape.split(", ")] for name, shape in shapes.items()}
        return {name: RNG.standard_normal(size).astype(np.float32) for name, size in dims.items()}

    shapes = {name: shape for name, shape in (("a", left), ("w", right)) if "n" not in shape}
    weights = arrays({})
    shapes = {name: shape for name, shape in (("a", left), ("w", right)) if "n" in shape}
    original = parse(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g ({", ".join(f"float[{shape}] {name}" for name, shape in shapes.items())}) => (float y)
        {{ y = Einsum<equation = "{equation}">(a, w) }}""",
        **weights,
    )
    plain = prepared(original).model
    assert [node.op_type for node in plain.graph] == operators
    for sizes in ({"b": 2, "n": 5}, {"b": 1, "n": 1}):
        check_equal(original, plain, arrays(sizes))
