from __future__ import annotations

import numpy as np
import pytest
from foreign_networks import check_equal, parse

from export.compiler.pipeline import prepared

CHOICE = """<ir_version: 8, opset_import: ["": 18]> g (float[n, 4] x, bool[n, 4] m, bool[n, 4] k) => (float[n, 4] y) {{
    hidden = Not({mask}) one = Cast<to = 1>(m) two = Cast<to = 1>(hidden) {products} y = Add({sum}) }}"""
PRODUCTS = "a = Mul(x, one) b = Mul(two, fill)"


@pytest.mark.parametrize(
    ("mask", "products", "total", "operators"),
    [
        ("m", PRODUCTS, "a, b", ["Where"]),
        ("m", PRODUCTS, "b, a", ["Where"]),
        ("m", "a = Mul(two, x) b = Mul(fill, one)", "a, b", ["Where"]),
        ("m", "a = Mul(one, two) b = Mul(fill, two)", "a, b", ["Not", "Cast", "Where"]),
        ("k", PRODUCTS, "a, b", ["Not", "Cast", "Cast", "Mul", "Mul", "Add"]),
        ("m", PRODUCTS, "a, x", ["Cast", "Mul", "Add"]),
    ],
)
def test_a_sum_of_masked_values_is_a_choice(mask: str, products: str, total: str, operators: list[str]) -> None:
    fill = np.array(-2e38, np.float32)
    original = parse(CHOICE.format(mask=mask, products=products, sum=total), fill=fill)
    plain = prepared(original).model
    assert [node.op_type for node in plain.graph] == operators
    rng = np.random.default_rng(0)
    for rows in (0, 3):
        shown, kept = rng.integers(0, 2, (2, rows, 4)).astype(bool)
        check_equal(original, plain, {"x": rng.standard_normal((rows, 4)), "m": shown, "k": kept})
