"""The driver: prepares a graph, runs the passes in order, counts the work after each pass and reports where it stopped.

In: a model, the parts of its outputs that the user reads, and the names of passes. Out: `Rewritten`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module

import onnx
import onnx_ir as ir

from export.compiler.errors import BadRequest, NothingToRewrite, NotSupported, Site
from export.compiler.graph.inline_functions import without_functions
from export.compiler.graph.input_defaults import restore_defaults, split_defaults
from export.compiler.graph.invert_input import invert_input
from export.compiler.graph.name_dimensions import name_free_dimensions
from export.compiler.graph.requested_output_parts import Read, apply_reads, resolve
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators.contrib_demand_rules import node_without_reference
from export.compiler.operators.costs import Work, graph_work
from export.compiler.passes import MOVING, PASSES, QUICKER
from export.compiler.passes.decompose_fused import decompose_fused
from export.compiler.passes.outcome import Pass
from export.compiler.passes.pack import pack
from export.compiler.passes.prepare import fold_constants, prepare, settle
from export.compiler.proof.inputs import channels, first_dimensions, free_dimensions, past_dimensions, shape_of
from export.compiler.proof.masks import mask_input, masked_feeds, possible_masks

NORM = "BatchNormalization"
USUAL_LENGTH = 128  # for counting costs: the size of free dimensions other than the batch and a decoder's past


@dataclass(frozen=True)
class Step:
    """What a pass did. `work`: of the model after it. Without `sites` the last of the `refusals` says why."""

    name: str
    work: Work
    sites: tuple[Site, ...]
    refusals: tuple[Site, ...]

    @property
    def macs(self) -> int:
        return self.work.macs

    @property
    def left_out(self) -> str:
        """Why the pass changed nothing; empty if it did."""
        return "" if self.sites else self.stopped or "nothing of its kind"

    @property
    def stopped(self) -> str:
        """Which operator stopped it, and why; empty if none did."""
        return str(self.refusals[-1]) if self.refusals else ""


@dataclass(frozen=True)
class Rewritten:
    """The rewritten model and a step for each pass. `work`: of the original."""

    model: ir.Model
    work: Work
    steps: tuple[Step, ...]

    @property
    def macs(self) -> int:
        return self.work.macs

    @property
    def applied(self) -> tuple[str, ...]:
        """The steps that changed something."""
        return tuple(step.name for step in self.steps if step.sites)


@dataclass(frozen=True)
class Prepared:
    """A model in the form that the passes read, so that it is prepared only once."""

    model: ir.Model


def prepared(model: ir.Model | onnx.ModelProto | Prepared) -> Prepared:
    """A prepared copy of the caller's model. Raises NotSupported for a graph that the passes do not read."""
    if isinstance(model, Prepared):
        return model
    copy = ir.from_proto(model) if isinstance(model, onnx.ModelProto) else model.clone()
    split_defaults(copy)
    prepare(copy)
    return Prepared(copy)


def drawable(model: ir.Model) -> ir.Graph:
    """A copy of the graph from which inputs can be drawn: with shapes, unless the passes do not read the graph.

    Raises NotSupported for inputs without a rank.
    """
    try:
        return prepared(model).model.graph
    except NotSupported:
        copy = without_functions(model)
        name_free_dimensions(copy.graph)
        return copy.graph


def optimise(
    model: ir.Model | onnx.ModelProto | Prepared,
    reads: Sequence[str | Read] = (),
    passes: Sequence[str] = PASSES,
    sizes: Mapping[str, int] | None = None,
    packed: str | None = None,
    hides: bool = False,
) -> Rewritten:
    """A copy of the model that gives the same answers with less work; the caller's model stays as it is.

    reads: the parts of the outputs that the user reads, such as `hidden[:,0]`; by default entire outputs. passes: names
    in PASSES; they run in the order of PASSES. sizes: a size for each free dimension, for counting costs. packed:
    the name of the mask, an input of 0 and 1. The last step, "pack", then computes no token that the mask hides; costs
    are counted without it. hides: the mask is true for hidden tokens, not for visible. The result has a Step for each
    pass.

    New weights are computed in float64 and cast once; `proof.runner.double_answers` computes with the weights before
    the cast. Raises NotSupported for a graph that the passes do not read, BadRequest for an unknown pass or output.
    """
    if unknown := sorted({*passes} - {*PASSES}):
        raise BadRequest(f"passes: expected some of {', '.join(PASSES)}, found {unknown[0]!r}")
    copy, sizes = model.model.clone() if isinstance(model, Prepared) else prepared(model).model, sizes or {}
    if packed is not None and hides:
        invert_input(copy.graph, packed)
    if reads:
        apply_reads(copy.graph, resolve(reads, copy.graph), packed)
        settle(copy)
    if node_without_reference(copy.graph) is not None:  # new weights would have no exact reference
        passes = [name for name in passes if name in MOVING]
    before = work = model_work(copy, sizes)
    steps: list[Step] = []
    for name in PASSES:
        if name not in passes:
            continue
        outcome = _pass(name)(copy, sizes)
        if outcome.sites:
            settle(copy)
            work = model_work(copy, sizes)
        steps.append(Step(name, work, outcome.sites, outcome.refusals))
    if packed is not None:
        if decompose_fused(copy, lambda node: True):
            work = model_work(copy, sizes)
        mask = mask_input(copy.graph, packed)
        outcome = pack(copy, mask, masked_feeds(copy.graph, mask))  # last: no other pass reads a loop
        steps.append(Step("pack", work, outcome.sites, outcome.refusals))
        if hides:
            invert_input(copy.graph, packed)
    restore_defaults(copy)
    return Rewritten(copy, before, tuple(steps))


def _pass(name: str) -> Pass:
    """The function `read_rows` in `passes/read_rows.py` for the name "read-rows"."""
    function = name.replace("-", "_")
    run: Pass = getattr(import_module(f"export.compiler.passes.{function}"), function)
    return run


def rewrite(
    model: ir.Model | onnx.ModelProto | Prepared,
    reads: Sequence[str | Read] = (),
    passes: Sequence[str] = PASSES,
    sizes: Mapping[str, int] | None = None,
    packed: str | None = None,
    hides: bool = False,
) -> Rewritten:
    """As `optimise`, but raises NothingToRewrite for a model that gains nothing.

    A model gains if a multiplication, a BatchNormalization or, with `packed`, the hidden tokens are left out, or if a
    pass in QUICKER changes it.
    """
    done = optimise(model, reads, passes, sizes, packed, hides)
    if packed is not None:
        if done.steps[-1].left_out:
            raise NothingToRewrite(f"pack: {done.steps[-1].left_out}")
        return done
    quicker = [step.name for step in done.steps for site in step.sites if step.name in QUICKER or site.operator == NORM]
    if not quicker and (not done.steps or done.steps[-1].work.total >= done.work.total):
        reported = [step for step in done.steps if step.sites or step.stopped] or done.steps
        advice = [] if reads else ["--read 'OUTPUT[:,0]' if you use only a part of an output"]
        advice += [f"--packed {name} to leave out hidden tokens" for name in possible_masks(done.model.graph)][:1]
        found = f"none; try {' or '.join(advice)}" if advice else "none"
        reasons = [f"{step.name}: {_outcome(step)}" for step in reported]
        raise NothingToRewrite(f"expected a multiplication to leave out, found {found}", reasons)
    return done


def cost_sizes(graph: ir.Graph, dims: Mapping[str, int]) -> dict[str, int]:
    """The size of each free dimension at which costs are counted: `dims`, and usual sizes for the others.

    The batch is 1 and a decoder's past 0; other dimensions are USUAL_LENGTH, or what a Conv or an attention fixes. An
    input [n, n] has no batch of its own: its n counts as a length. Raises BadRequest for unknown names in `dims`.
    """
    symbols, batches = free_dimensions(graph), first_dimensions(graph) - _lengths(graph)
    unknown = sorted(dims.keys() - set(symbols))
    if unknown:
        raise BadRequest(f"dims: expected one of {', '.join(symbols) or 'none'}, found {unknown[0]!r}")
    usual = {symbol: 1 if symbol in batches else USUAL_LENGTH for symbol in symbols}
    return usual | dict.fromkeys(past_dimensions(graph), 0) | channels(graph) | {**dims}


def _lengths(graph: ir.Graph) -> set[str]:
    """The free dimensions behind a free first axis, of any input."""
    shapes = [value.shape.dims for value in graph.inputs if value.shape is not None and value.shape.rank()]
    return {str(dim) for first, *inner in shapes if not isinstance(first, int) for dim in inner}


def model_work(model: ir.Model, sizes: Mapping[str, int]) -> Work:
    """The work of the model at these sizes.

    Some shapes do not follow from symbols, but follow from numbers. If all sizes are known, they are put into the
    inputs, and shapes are inferred again.
    """
    shapes = Shapes(model.graph, sizes)
    work = graph_work(shapes)
    if not work.uncounted or not sizes.keys() >= {*free_dimensions(model.graph)}:
        return work
    fixed = model.clone()
    for value in fixed.graph.inputs:
        value.shape = ir.Shape(shape_of(value, sizes))
    with suppress(NotSupported):  # the sizes do not fit together
        fold_constants(fixed)
        fixed_work = graph_work(Shapes(fixed.graph, sizes))
        return fixed_work if len(fixed_work.uncounted) < len(work.uncounted) else work
    return work


def _outcome(step: Step) -> str:
    if step.sites:
        places = "1 place" if len(step.sites) == 1 else f"{len(step.sites)} places"
        return f"{places} rewritten, which saves no multiplication"
    return step.left_out
