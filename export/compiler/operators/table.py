"""The table of operators: what the compiler knows of each. A row lists operators of which it knows the same.

In: a node. Out: its `Operator`. Leaving a column empty is always safe: an operator without a rule reads its inputs
entirely, an operator without a formula counts no work, and passes assume nothing of an operator without a view or
traits. The kernels in float64 are in `kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto

import onnx_ir as ir

from export.compiler.errors import Refused
from export.compiler.graph.attributes import reads_shape_alone
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators import contrib_demand_rules, data_movement, demand_rules, mac_formulas, view
from export.compiler.operators.boxes import WHOLE, Box
from export.compiler.operators.contrib_demand_rules import DOMAIN
from export.compiler.operators.demand_rules import Demand, Rule, broadcasting, elementwise, everything
from export.compiler.operators.mac_formulas import Macs, no_formula
from export.compiler.operators.view import View


class Trait(Flag):
    NONE = 0
    MOVES = auto()  # the outputs hold elements of the first input, perhaps in another dtype
    PICKS = auto()  # picks rows by indices, which are an input
    BOUND = auto()  # limits the number of tokens: it has a table with a row for each position
    RANDOM = auto()
    ZERO = auto()  # the output is 0 where the first input is 0
    ZERO_IF_ANY = auto()  # the output is 0 where an input is 0
    ZERO_IF_ALL = auto()  # the output is 0 where all inputs are 0
    SUMS = auto()  # reduces; an element that is 0 changes nothing
    GREATEST = auto()  # reduces; an element far below the others changes nothing
    POSITIVE = auto()  # the output is at least 0
    SIGNED = auto()  # the output is at least 0 if all inputs are; with MOVES, if the first input is
    BOUNDED = auto()  # the output is small, however large the inputs are


MOVES, PICKS, RANDOM, SUMS, GREATEST = Trait.MOVES, Trait.PICKS, Trait.RANDOM, Trait.SUMS, Trait.GREATEST
ZERO, ZERO_IF_ANY, ZERO_IF_ALL = Trait.ZERO, Trait.ZERO_IF_ANY, Trait.ZERO_IF_ALL
POSITIVE, SIGNED, BOUNDED = Trait.POSITIVE, Trait.SIGNED, Trait.BOUNDED


@dataclass(frozen=True)
class Operator:
    """What is known of an operator.

    reads: which parts of its inputs a part of an output needs. macs: its number of multiply-accumulates. view: how it
    moves elements, if it does nothing else.
    """

    reads: Rule | None = None
    traits: Trait = Trait.NONE
    macs: Macs | None = None
    view: view.Build | None = None


def _moving(build: view.Build, reads: Rule | None = None, traits: Trait = Trait.NONE) -> Operator:
    return Operator(reads or data_movement.viewed(build), MOVES | SIGNED | traits, view=build)


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
    ("Transpose", _moving(data_movement.transposed)),
    ("Flatten Reshape Squeeze Unsqueeze", _moving(data_movement.reshaped)),
    ("Expand", _moving(data_movement.expanded)),
    ("Tile", _moving(data_movement.tiled)),
    ("Slice", _moving(data_movement.sliced)),
    ("Split", _moving(data_movement.split)),
    ("Gather", _moving(data_movement.gathered, data_movement.gather, PICKS)),
    ("GatherElements", Operator(data_movement.gather_elements, PICKS)),
    ("GatherND", Operator(data_movement.gather_nd, PICKS | MOVES | SIGNED)),
    ("ScatterElements", Operator(data_movement.scatter_elements)),
    ("ScatterND", Operator(data_movement.scatter)),
    ("Concat", Operator(data_movement.concat, ZERO_IF_ALL | SIGNED)),
    ("Pad", Operator(data_movement.pad)),
    ("ReduceL1 ReduceL2 ReduceSumSquare", Operator(demand_rules.reduce, SUMS)),
    ("ReduceSum", Operator(demand_rules.reduce, ZERO | SUMS)),
    ("ReduceMax", Operator(demand_rules.reduce, ZERO | GREATEST)),
    ("ReduceLogSumExp", Operator(demand_rules.reduce, GREATEST)),
    ("ReduceLogSum ReduceMean ReduceMin ReduceProd", Operator(demand_rules.reduce)),
    ("GlobalAveragePool GlobalMaxPool", Operator(demand_rules.global_pool)),
    ("ArgMax ArgMin", Operator(demand_rules.arg_best)),
    ("Softmax", Operator(demand_rules.softmax, POSITIVE | BOUNDED)),
    ("LogSoftmax", Operator(demand_rules.softmax)),
    ("LayerNormalization RMSNormalization SimplifiedLayerNormalization", Operator(demand_rules.layer_norm, BOUNDED)),
    ("LpNormalization", Operator(demand_rules.along_axis, BOUNDED)),
    ("TopK", Operator(demand_rules.along_axis)),
    ("BatchNormalization", Operator(demand_rules.batch_norm)),
    ("MatMul", Operator(demand_rules.matmul, ZERO_IF_ANY, mac_formulas.matrices(1))),
    ("Gemm", Operator(demand_rules.gemm, macs=mac_formulas.gemm)),
    ("Einsum", Operator(demand_rules.einsum, macs=mac_formulas.einsum)),
    ("Attention", Operator(demand_rules.attention, macs=mac_formulas.attention)),
    ("RotaryEmbedding", Operator(demand_rules.rotary, Trait.BOUND)),
    ("Conv", Operator(demand_rules.conv, macs=mac_formulas.filters(1))),
    ("ConvInteger", Operator(None, macs=mac_formulas.filters(1))),
    ("ConvTranspose", Operator(None, macs=mac_formulas.filters_of_input)),
    ("GRU LSTM RNN", Operator(None, macs=mac_formulas.recurrent)),
    ("DFT DeformConv STFT", Operator(None, macs=no_formula)),
    # A quantised 0 is stored as the zero point.
    ("DequantizeLinear QuantizeLinear", Operator(contrib_demand_rules.scaled, ZERO)),
    ("MatMulInteger", Operator(contrib_demand_rules.integer_matmul((0, 1), (2,)), macs=mac_formulas.matrices(1))),
    ("QLinearMatMul", Operator(contrib_demand_rules.integer_matmul((0, 3), (1, 2)), macs=mac_formulas.matrices(3))),
    ("QLinearConv", Operator(None, macs=mac_formulas.filters(3))),
    ("Bernoulli Multinomial", Operator(None, RANDOM)),
    ("RandomNormal RandomNormalLike RandomUniform RandomUniformLike", Operator(None, RANDOM)),
)
CONTRIB = _rows(  # ONNX Runtime's operators that a graph may have; others are refused
    ("BiasGelu FastGelu Gelu QuickGelu", Operator(broadcasting)),  # of the input and a bias
    ("LayerNormalization SimplifiedLayerNormalization", Operator(demand_rules.layer_norm)),
    ("SkipLayerNormalization SkipSimplifiedLayerNormalization", Operator(contrib_demand_rules.skip_norm)),
    ("FusedMatMul", Operator(contrib_demand_rules.fused_matmul, macs=mac_formulas.gemm)),
    ("FusedGemm", Operator(demand_rules.gemm, macs=mac_formulas.gemm)),  # a Gemm with an activation
    ("FusedConv", Operator(None, macs=mac_formulas.filters(1))),
    ("MatMulNBits", Operator(demand_rules.along_axis, macs=mac_formulas.blocks)),  # blocks of columns stay together
    (
        "MatMulIntegerToFloat",
        Operator(contrib_demand_rules.integer_matmul((0, 1), (2, 4)), macs=mac_formulas.matrices(1)),
    ),
    ("DynamicQuantizeMatMul", Operator(None, macs=mac_formulas.matrices(1))),  # a scale from all rows
    ("MultiHeadAttention", Operator(contrib_demand_rules.multi_head, macs=mac_formulas.multi_head)),
    (
        "GroupQueryAttention",
        Operator(None, macs=mac_formulas.grouped),
    ),  # counts its queries' positions
    ("RotaryEmbedding", Operator(contrib_demand_rules.rotary, Trait.BOUND)),
    ("GatherBlockQuantized", Operator(contrib_demand_rules.gather_blocks)),
    ("DequantizeLinear QuantizeLinear", Operator(contrib_demand_rules.scaled)),
    ("QLinearAdd QLinearMul QLinearWhere", Operator(broadcasting)),
    ("QLinearSoftmax", Operator(contrib_demand_rules.quantised_softmax)),
    ("QLinearConcat", Operator(contrib_demand_rules.quantised_concat)),
    ("QLinearLeakyRelu QLinearSigmoid", Operator(elementwise)),
    ("Attention", Operator(None, macs=mac_formulas.projecting)),
    ("CausalConvWithState DynamicQuantizeLSTM LongformerAttention", Operator(None, macs=no_formula)),
    ("MoE QAttention QGemm QMoE SparseAttention", Operator(None, macs=no_formula)),
    ("BiasAdd BiasSplitGelu EmbedLayerNormalization GatedRelativePositionBias", Operator()),
    ("QEmbedLayerNormalization QLinearAveragePool QLinearGlobalAveragePool", Operator()),
)
TABLE = {"": STANDARD, DOMAIN: CONTRIB}
UNLISTED = Operator()


def operator_of(node: ir.Node) -> Operator:
    """The operator's row of the table; an empty row for an operator that is not listed."""
    return TABLE.get(node.domain, {}).get(node.op_type, UNLISTED)


def _named(condition: Callable[[Operator], bool]) -> frozenset[str]:
    """The names of the ONNX operators whose row meets the condition."""
    return frozenset(name for name, row in STANDARD.items() if condition(row))


ELEMENTWISE = _named(lambda row: row.reads is elementwise)
BROADCASTING = _named(lambda row: row.reads is broadcasting)
REDUCING = _named(lambda row: row.reads is demand_rules.reduce)
NORMALISING = _named(lambda row: row.reads is demand_rules.layer_norm)
VIEWS = _named(lambda row: row.view is not None)
REPEATING = _named(lambda row: row.view in (data_movement.expanded, data_movement.tiled))
RESHAPES = _named(lambda row: row.view is data_movement.reshaped)
SELECTING = _named(lambda row: row.view in (data_movement.gathered, data_movement.sliced, data_movement.split))
# Operators whose target shape must change when only a part of the output is computed.
RESIZING = _named(lambda row: row.view in (data_movement.reshaped, data_movement.expanded))


def view_of(shapes: Shapes, node: ir.Node, index: int = 0) -> View | None:
    """The view that makes the output `index`; None if the operator does not only move elements.

    Raises Refused if a rank is unknown.
    """
    build = operator_of(node).view
    return view.built(shapes, node, index, build) if build is not None else None


def demand_of(shapes: Shapes, node: ir.Node, index: int, wanted: Box) -> Demand:
    """The boxes of the inputs that the box `wanted` of the output `index` needs. All of them if no rule fits."""
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
