"""ONNX's own operator tests as tests of the rules: each part of each output is that part of the whole output."""

from __future__ import annotations

import collections
import functools
import warnings
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx.backend.test.case.node import collect_testcases
from onnx.reference.ops import op_pool_common

from export.compiler.analyses.demand import analyse
from export.compiler.errors import ForeignError
from export.compiler.graph.def_use import remove_unused
from export.compiler.graph.requested_output_parts import Read, apply_reads
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.passes.materialise_parts import Materialiser
from export.compiler.passes.prepare import prepare

Array = NDArray[Any]
CHUNKS = 8
LARGEST = 1 << 16  # elements of an input


@functools.cache
def cases() -> list[Any]:
    """`pool` of ONNX's reference takes 5 s for the answers to inputs that are too large here."""
    pool = op_pool_common.pool
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr(op_pool_common, "pool", lambda x, *how, **more: x if x.size > LARGEST else pool(x, *how, **more))
        found = [case for case in collect_testcases(None) if case.data_sets and case.model is not None]
    return sorted(found, key=lambda case: case.name)


def reads(name: str, shape: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """One part along each axis, and one of two axes.

    Of an operator that is written out in others, which have cases of their own, one of these.
    """
    parts = (0, slice(-2, None), -1, (1, 0))
    every: list[tuple[Any, ...]] = [
        (*[slice(None)] * axis, parts[(axis + size) % len(parts) if size > 1 else 0]) for axis, size in enumerate(shape)
    ]
    if len(shape) > 1 and min(shape) > 1:
        every.append((-1, slice(0, 1)))
    return [every[len(name) % len(every)]] if every and "expanded" in name else every


def runner(proto: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def freed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same with a symbol for each size of the inputs: equal sizes share it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for value in copy.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value > 1:
                dim.dim_param = f"size_{dim.dim_value}"
    for value in copy.graph.output:
        value.type.tensor_type.ClearField("shape")
    del copy.graph.value_info[:]
    return copy


def part(model: ir.Model, read: Read) -> onnx.ModelProto:
    model = model.clone()
    apply_reads(model.graph, [read])
    prepare(model)
    shapes = Shapes(model.graph)
    Materialiser(shapes, analyse(shapes)[0]).run()
    remove_unused(model)
    model.graph.sort()
    return ir.to_proto(model)


def check(case: Any, proto: onnx.ModelProto, tally: collections.Counter[str], faults: list[str]) -> None:
    arrays = case.data_sets[0][0]
    if not all(isinstance(array, np.ndarray) and array.size <= LARGEST for array in arrays):
        tally["no tensors"] += 1
        return
    feeds = dict(zip([value.name for value in proto.graph.input], arrays, strict=False))
    try:
        plain = runner(proto)
        whole = dict(zip([value.name for value in plain.get_outputs()], plain.run(None, feeds), strict=True))
    except Exception:  # an operator or a dtype that ONNX Runtime lacks
        tally["the original does not run"] += 1
        return
    model = ir.from_proto(proto)
    for name, array in whole.items():
        if not isinstance(array, np.ndarray) or not array.size or array.dtype == object:
            continue
        for indices in reads(case.name, array.shape):
            read = Read(name, indices)
            what = f"{case.name} {read}"
            try:
                cut = part(model, read)
            except ForeignError:
                tally["refused"] += 1
                continue
            except Exception as error:
                faults.append(f"{what}: crash: {type(error).__name__} {error}")
                continue
            try:
                found = runner(cut).run(None, {value.name: feeds[value.name] for value in cut.graph.input})[0]
            except Exception as error:
                faults.append(f"{what}: does not run: {str(error)[:300]}")
                continue
            expected = read.of(array)
            if found.shape != expected.shape or not same(expected, found):
                faults.append(f"{what}: wrong")
            tally["equal"] += 1


def same(expected: Array, found: Array) -> bool:
    """Integers and what is not finite are equal, other numbers nearly."""
    if expected.dtype.kind == "c":
        return same(expected.real, found.real) and same(expected.imag, found.imag)
    if expected.dtype.kind != "f":
        return bool((expected == found).all())
    finite = np.isfinite(expected)
    if not (finite == np.isfinite(found)).all():
        return False
    near = np.allclose(expected[finite].astype(float), found[finite].astype(float), rtol=1e-3, atol=1e-4)
    return bool(near and np.array_equal(expected[~finite], found[~finite], equal_nan=True))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_parts_of_onnx_s_own_operator_tests(chunk: int) -> None:
    """Every second one with free sizes."""
    tally: collections.Counter[str] = collections.Counter()
    faults: list[str] = []
    for number, case in enumerate(cases()[chunk::CHUNKS]):
        check(case, freed(case.model) if number % 2 else case.model, tally, faults)
    assert not faults, "\n".join([f"{len(faults)} faults of {tally}", *faults[:20]])
    assert tally["equal"] > 300


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(
    ("expected", "found", "answer"),
    [
        ([1, np.inf, np.nan], [1 + 1e-5, np.inf, np.nan], True),
        ([np.inf], [-np.inf], False),
        ([np.inf], [np.nan], False),
        ([1], [np.inf], False),
        ([np.nan], [1], False),
        ([1, np.inf], [1.1, np.inf], False),
    ],
)
def test_infinities_are_compared_apart(
    dtype: type[np.generic], expected: list[float], found: list[float], answer: bool
) -> None:
    assert same(np.array(expected, dtype), np.array(found, dtype)) is answer
