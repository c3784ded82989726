"""What the compiler knows of each operator: by domain, a row for those of which it knows the same.

In: a node. Out: its `Operator`. An empty column is always right: an operator without a rule reads its inputs whole, one
without a formula counts no work, one without a view or a trait is taken for nothing special. Kernels in double are in
`kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto

import onnx_ir as ir

from export.compiler.errors import Refused
from export.compiler.graph.attributes import reads_shape_alone
from export.compiler.graph.shapes import Shapes
from export.compiler.operators import contrib, macs, moves, rules, view
from export.compiler.operators.boxes import WHOLE, Box
from export.compiler.operators.contrib import DOMAIN
from export.compiler.operators.macs import Macs, no_formula
from export.compiler.operators.rules import Demand, Rule, broadcasting, elementwise, everything
from export.compiler.operators.view import View


class Trait(Flag):
    NONE = 0
    MOVES = auto()  # its outputs' elements are its first input's, perhaps in another dtype
    PICKS = auto()  # rows whose numbers are an input
    BOUND = auto()  # takes no more tokens of a text than the network does: its table has a row for each place
    RANDOM = auto()
    ZERO = auto()  # 0 where its first input is 0
    ZERO_IF_ANY = auto()  # 0 where an input is 0
    ZERO_IF_ALL = auto()
    SUMS = auto()  # an element that is 0 adds nothing
    GREATEST = auto()  # an element far below the others adds nothing
    POSITIVE = auto()  # or 0
    SIGNED = auto()  # never negative if no input is, of those that move elements the first
    BOUNDED = auto()  # small, however large the inputs are


MOVES, PICKS, RANDOM, SUMS, GREATEST = Trait.MOVES, Trait.PICKS, Trait.RANDOM, Trait.SUMS, Trait.GREATEST
ZERO, ZERO_IF_ANY, ZERO_IF_ALL = Trait.ZERO, Trait.ZERO_IF_ANY, Trait.ZERO_IF_ALL
POSITIVE, SIGNED, BOUNDED = Trait.POSITIVE, Trait.SIGNED, Trait.BOUNDED


@dataclass(frozen=True)
class Operator:
    """`reads`: what a part of an output needs. `macs`: of its products. `view`: how it moves elements, if no more."""

    reads: Rule | None = None
    traits: Trait = Trait.NONE
    macs: Macs | None = None
    view: view.Build | None = None


def _moving(build: view.Build, reads: Rule | None = None, traits: Trait = Trait.NONE) -> Operator:
    return Operator(reads or moves.viewed(build), MOVES | SIGNED | traits, view=build)


def _rows(*rows: tuple[str, Operator]) -> dict[str, Operator]:
    return {name: row for names, row in rows for name in names.split()}


STANDARD = _rows(
    ("Acos Acosh Asin Asinh Atanh Ceil Celu Cosh Elu Floor HardSwish LeakyRelu Log Mish", Operator(elementwise)),
    ("Not Reciprocal Round Selu Sinh ThresholdedRelu", Operator(elementwise)),
    ("Atan Cos HardSigmoid Softsign", Operator(elementwise, BOUNDED)),
    ("Gelu IsInf IsNaN Neg Swish Tan", Operator(elementwise, ZERO)),
    ("Erf Sign Sin Tanh", Operator(elementwise, ZERO | BOUNDED)),
    ("Abs Relu Sqrt", Operator(elementwise, ZERO | POSITIVE)),
    ("Exp Softplus", Operator(elementwise, POSITIVE)),
    ("Sigmoid", Operator(elementwise, POSITIVE | BOUNDED)),
    ("Clip", Operator(elementwise, SIGNED)),
    ("Cast Identity", Operator(elementwise, MOVES | SIGNED)),
    ("BitwiseAnd BitwiseOr BitwiseXor Equal Greater GreaterOrEqual Less LessOrEqual", Operator(broadcasting)),
    ("Mean Mod PRelu Pow Where Xor", Operator(broadcasting)),
    ("Add Max Min Sum", Operator(broadcasting, ZERO_IF_ALL | SIGNED)),
    ("Or Sub", Operator(broadcasting, ZERO_IF_ALL)),
    ("And", Operator(broadcasting, ZERO_IF_ANY)),
    ("Mul", Operator(broadcasting, ZERO_IF_ANY | SIGNED)),
    ("Div", Operator(broadcasting, ZERO)),
    ("Transpose", _moving(moves.transposed)),
    ("Flatten Reshape Squeeze Unsqueeze", _moving(moves.reshaped)),
    ("Expand", _moving(moves.expanded)),
    ("Tile", _moving(moves.tiled)),
    ("Slice", _moving(moves.sliced)),
    ("Split", _moving(moves.split)),
    ("Gather", _moving(moves.gathered, moves.gather, PICKS)),
    ("GatherElements", Operator(moves.gather_elements, PICKS)),
    ("GatherND", Operator(moves.gather_nd, PICKS | MOVES | SIGNED)),
    ("ScatterElements", Operator(moves.scatter_elements)),
    ("ScatterND", Operator(moves.scatter)),
    ("Concat", Operator(moves.concat, ZERO_IF_ALL | SIGNED)),
    ("ReduceL1 ReduceL2 ReduceSumSquare", Operator(rules.reduce, SUMS)),
    ("ReduceSum", Operator(rules.reduce, ZERO | SUMS)),
    ("ReduceMax", Operator(rules.reduce, ZERO | GREATEST)),
    ("ReduceLogSumExp", Operator(rules.reduce, GREATEST)),
    ("ReduceLogSum ReduceMean ReduceMin ReduceProd", Operator(rules.reduce)),
    ("ArgMax ArgMin", Operator(rules.best)),
    ("Softmax", Operator(rules.softmax, POSITIVE | BOUNDED)),
    ("LogSoftmax", Operator(rules.softmax)),
    ("LayerNormalization RMSNormalization SimplifiedLayerNormalization", Operator(rules.layer_norm, BOUNDED)),
    ("LpNormalization", Operator(rules.along_axis, BOUNDED)),
    ("TopK", Operator(rules.along_axis)),
    ("BatchNormalization", Operator(rules.batch_norm)),
    ("MatMul", Operator(rules.matmul, ZERO_IF_ANY, macs.matrices(0, 1))),
    ("Gemm", Operator(rules.gemm, macs=macs.gemm)),
    ("Einsum", Operator(rules.einsum, macs=macs.einsum)),
    ("Attention", Operator(rules.attention, macs=macs.attention)),
    ("RotaryEmbedding", Operator(rules.rotary, Trait.BOUND)),
    ("Conv", Operator(rules.conv, macs=macs.filters(1))),
    ("ConvInteger", Operator(None, macs=macs.filters(1))),
    ("ConvTranspose", Operator(None, macs=macs.filters_of_input)),
    ("GRU LSTM RNN", Operator(None, macs=macs.recurrent)),
    ("DFT DeformConv STFT", Operator(None, macs=no_formula)),
    ("DequantizeLinear QuantizeLinear", Operator(contrib.scaled, ZERO)),  # between the two 0 is the zero point
    ("MatMulInteger", Operator(contrib.integer_matmul((0, 1), (2,)), macs=macs.matrices(0, 1))),
    ("QLinearMatMul", Operator(contrib.integer_matmul((0, 3), (1, 2)), macs=macs.matrices(0, 3))),
    ("QLinearConv", Operator(None, macs=macs.filters(3))),
    ("Bernoulli Multinomial", Operator(None, RANDOM)),
    ("RandomNormal RandomNormalLike RandomUniform RandomUniformLike", Operator(None, RANDOM)),
)
OF_MICROSOFT = _rows(  # those of ONNX Runtime that the passes let stand; others are refused
    ("BiasGelu FastGelu Gelu QuickGelu", Operator(contrib.biased)),
    ("LayerNormalization SimplifiedLayerNormalization", Operator(rules.layer_norm)),
    ("SkipLayerNormalization SkipSimplifiedLayerNormalization", Operator(contrib.skip_norm)),
    ("FusedMatMul", Operator(contrib.fused_matmul, macs=macs.fused)),
    ("FusedGemm", Operator(rules.gemm, macs=macs.gemm)),  # and FusedConv: with an activation
    ("FusedConv", Operator(None, macs=macs.filters(1))),
    ("MatMulNBits", Operator(contrib.rows, macs=macs.blocks)),
    ("MatMulIntegerToFloat", Operator(contrib.integer_matmul((0, 1), (2, 4)), macs=macs.matrices(0, 1))),
    ("DynamicQuantizeMatMul", Operator(None, macs=macs.matrices(0, 1))),  # a scale from all rows
    ("MultiHeadAttention", Operator(contrib.multi_head, macs=macs.multi_head)),
    ("GroupQueryAttention", Operator(None, macs=macs.grouped)),  # takes its queries' positions from their number
    ("RotaryEmbedding", Operator(contrib.rotary, Trait.BOUND)),
    ("GatherBlockQuantized", Operator(contrib.gather_blocks)),
    ("DequantizeLinear QuantizeLinear", Operator(contrib.scaled)),
    ("QLinearAdd QLinearMul QLinearWhere", Operator(broadcasting)),
    ("QLinearSoftmax", Operator(contrib.quantised_softmax)),
    ("QLinearLeakyRelu QLinearSigmoid", Operator(elementwise)),
    ("Attention", Operator(None, macs=macs.projecting)),
    ("CausalConvWithState DynamicQuantizeLSTM LongformerAttention", Operator(None, macs=no_formula)),
    ("MoE QAttention QGemm QMoE SparseAttention", Operator(None, macs=no_formula)),
    ("BiasAdd BiasSplitGelu EmbedLayerNormalization GatedRelativePositionBias", Operator()),
    ("QEmbedLayerNormalization QLinearAveragePool QLinearConcat QLinearGlobalAveragePool", Operator()),
)
TABLE = {"": STANDARD, DOMAIN: OF_MICROSOFT}
UNLISTED = Operator()


def operator_of(node: ir.Node) -> Operator:
    return TABLE.get(node.domain, {}).get(node.op_type, UNLISTED)


def _named(chosen: Callable[[Operator], bool]) -> frozenset[str]:
    return frozenset(name for name, row in STANDARD.items() if chosen(row))


ELEMENTWISE = _named(lambda row: row.reads is elementwise)
BROADCASTING = _named(lambda row: row.reads is broadcasting)
REDUCING = _named(lambda row: row.reads is rules.reduce)
NORMALISING = _named(lambda row: row.reads is rules.layer_norm)
VIEWS = _named(lambda row: row.view is not None)
REPEATING = _named(lambda row: row.view in (moves.expanded, moves.tiled))
RESHAPES = _named(lambda row: row.view is moves.reshaped)
SELECTING = _named(lambda row: row.view in (moves.gathered, moves.sliced, moves.split))
RESIZING = _named(
    lambda row: row.view in (moves.reshaped, moves.expanded)
)  # a part of the output has a shape of its own


def view_of(shapes: Shapes, node: ir.Node, index: int = 0) -> View | None:
    """Of the output `index`; None of an operator that does more. Raises Refused if a rank is unknown."""
    build = operator_of(node).view
    return view.built(shapes, node, index, build) if build is not None else None


def demand_of(shapes: Shapes, node: ir.Node, index: int, wanted: Box) -> Demand:
    if reads_shape_alone(node):
        return Demand(WHOLE, {})
    rule = operator_of(node).reads
    if rule is None:
        return everything(node)
    try:
        demand = rule(shapes, node, index, wanted)
    except Refused:
        return everything(node)
    empty = any(not chosen for read in demand.inputs.values() for _, chosen in read)
    return everything(node) if empty else demand
