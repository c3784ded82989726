"""The kernels in double beside PyTorch's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator

from export.compiler.operators.erf import erf
from export.compiler.operators.kernels import KERNELS

Array = NDArray[np.float64]
CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], list[int], list[int], list[int], int]] = [
    ((2, 3, 32, 32), (8, 3, 16, 16), [16, 16], [0, 0], [1, 1], 1),
    ((2, 6, 9, 10), (6, 1, 3, 3), [2, 1], [2, 2], [2, 2], 6),
    ((2, 8, 50), (6, 4, 5), [3], [2], [2], 2),
    ((2, 4, 9, 9, 9), (6, 4, 3, 2, 1), [1, 2, 1], [1, 0, 0], [1, 1, 2], 1),
]


def run(operator: str, arrays: list[Array], **attributes: Any) -> Array:
    names = [f"in{position}" for position in range(len(arrays))]
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["out"], **attributes)],
        "node",
        [helper.make_empty_tensor_value_info(name) for name in names],
        [helper.make_empty_tensor_value_info("out")],
    )
    result: Array = ReferenceEvaluator(graph, opsets={"": 20}, new_ops=KERNELS).run(
        None, dict(zip(names, arrays, strict=True))
    )[0]
    return result


@pytest.mark.parametrize(("image", "weight", "strides", "pads", "dilations", "group"), CONVOLUTIONS)
def test_conv(
    image: tuple[int, ...],
    weight: tuple[int, ...],
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    group: int,
) -> None:
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(shape) for shape in (image, weight, weight[:1]))
    convolve = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(image)]
    expected = convolve(*map(torch.from_numpy, (x, w, b)), strides, pads, dilations, group).numpy()
    found = run("Conv", [x, w, b], strides=strides, pads=pads * 2, dilations=dilations, group=group)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 3, 7]),
        ({"exclusive": 1}, [0, 1, 3]),
        ({"reverse": 1}, [7, 6, 4]),
        ({"exclusive": 1, "reverse": 1}, [6, 4, 0]),
    ],
)
@pytest.mark.parametrize("axis", [np.array(1), np.array([1]), np.array([-1])])
def test_a_sum_along_an_axis_that_may_be_a_vector(axis: Array, options: dict[str, int], expected: list[int]) -> None:
    found = run("CumSum", [np.array([[1.0, 2, 4]] * 2), axis], **options)
    np.testing.assert_array_equal(found, [expected] * 2)


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu(form: str) -> None:
    x = np.random.default_rng(0).standard_normal((50, 70)) * 3
    np.testing.assert_allclose(
        run("Gelu", [x], approximate=form), F.gelu(torch.from_numpy(x), approximate=form).numpy(), rtol=0, atol=1e-15
    )


def test_erf_has_the_precision_of_doubles() -> None:
    x = np.random.default_rng(0).standard_normal((101, 201)) * 2
    x[0, :8] = [0, -0.0, 6, -7, 1e-300, 5.9999, np.inf, -np.inf]
    expected = np.vectorize(math.erf)(x)
    np.testing.assert_allclose(erf(x), expected, rtol=5e-16, atol=0)
    assert np.isnan(erf(np.array([np.nan]))).all()
    assert (erf(np.array(0.5)).shape, erf(np.zeros((0, 3))).shape) == ((), (0, 3))
