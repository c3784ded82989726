"""All passes in sequence, with the gain of each.

In: a model, the reads of its outputs and the wanted passes. Out: `Rewritten`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.errors import NothingToRewrite, NotSupported, Refusal, Site
from export.compiler.graph.inference import infer
from export.compiler.graph.reads import Read, apply_reads, parse_read, resolve
from export.compiler.graph.shapes import Shapes
from export.compiler.operators.contrib import without_double
from export.compiler.operators.costs import graph_macs, is_multiplying
from export.compiler.passes.absorb_queries import AbsorbQueries
from export.compiler.passes.fold_affine import FoldAffine
from export.compiler.passes.prepare import Prepare, fold_constants
from export.compiler.passes.read_rows import ReadRows
from export.compiler.passes.results import RewriteResult
from export.compiler.proof.inputs import free_dimensions, shape_of

PASSES: Mapping[str, Callable[[Mapping[str, int]], ir.passes.InPlacePass]] = {
    FoldAffine.name: FoldAffine,
    ReadRows.name: ReadRows,
    AbsorbQueries.name: AbsorbQueries,
}


@dataclass(frozen=True)
class Step:
    name: str
    macs: int
    sites: tuple[Site, ...]
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class Rewritten:
    model: ir.Model
    macs: int
    steps: tuple[Step, ...]


def rewrite(
    model: ir.Model,
    reads: Sequence[str | Read] = (),
    passes: Sequence[str] = tuple(PASSES),
    sizes: Mapping[str, int] | None = None,
) -> Rewritten:
    """The passes run in the order of PASSES. Costs are counted at `sizes` of the free dimensions.

    Raises NotSupported for an unsupported graph, BadRequest for an unknown output, and NothingToRewrite if no
    multiplication is saved and no BatchNormalization goes.
    """
    model = model.clone()
    given = [parse_read(read) if isinstance(read, str) else read for read in reads]
    apply_reads(model.graph, resolve(given, [str(value.name) for value in model.graph.outputs]))
    Prepare()(model)
    if without_double(model.graph) is not None:  # new weights would have no exact reference
        passes = [name for name in passes if name == ReadRows.name]
    before = model_macs(model, sizes or {})
    steps = []
    for name in sorted({*passes}, key=[*PASSES].index):  # absorb-queries needs the cuts of read-rows
        result = PASSES[name](sizes or {})(model)
        infer(model)
        done = (result.sites, result.refusals) if isinstance(result, RewriteResult) else ((), ())
        steps.append(Step(name, model_macs(model, sizes or {}), *done))
    norms = [site for step in steps for site in step.sites if site.operator == "BatchNormalization"]
    if not norms and (not steps or steps[-1].macs >= before):
        reasons = [f"{step.name}: {_outcome(step)}" for step in steps]
        raise NothingToRewrite("; ".join(reasons))
    return Rewritten(model, before, tuple(steps))


def model_macs(model: ir.Model, sizes: Mapping[str, int]) -> int:
    """At `sizes`, which are put into the inputs where shapes do not follow from their symbols."""
    shapes = Shapes(model.graph, sizes)
    if _are_sized(shapes) or not sizes.keys() >= {*free_dimensions(model.graph)}:
        return graph_macs(shapes)
    fixed = model.clone()
    for value in fixed.graph.inputs:
        value.shape = ir.Shape(shape_of(value, sizes))
    with suppress(NotSupported):  # the sizes do not fit together
        fold_constants(fixed)
        if _are_sized(known := Shapes(fixed.graph, sizes)):
            return graph_macs(known)
    return graph_macs(shapes)


def _are_sized(shapes: Shapes) -> bool:
    """Whether the sizes of every product are known."""
    used = [value for node in shapes.graph if is_multiplying(node) for value in (*node.inputs, node.outputs[0])]
    return all(map(shapes.is_sized, used))


def _outcome(step: Step) -> str:
    if step.sites:
        return f"{len(step.sites)} places rewritten, which saves no multiplication of a matrix"
    return str(step.refusals[-1]) if step.refusals else "nothing of its kind"
