"""What the compiler knows of each operator: a row an operator, by domain and name.

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
    RANDOM = auto()
    ZERO = auto()  # 0 where its first input is 0
    ZERO_IF_ANY = auto()  # 0 where an input is 0
    ZERO_IF_ALL = auto()
    SUMS = auto()  # an element that is 0 adds nothing
    GREATEST = auto()  # an element far below the others adds nothing
    POSITIVE = auto()  # or 0
    SIGNED = auto()  # never negative if no input is, of those that move elements the first


MOVES, PICKS, RANDOM, SUMS, GREATEST = Trait.MOVES, Trait.PICKS, Trait.RANDOM, Trait.SUMS, Trait.GREATEST
ZERO, ZERO_IF_ANY, ZERO_IF_ALL = Trait.ZERO, Trait.ZERO_IF_ANY, Trait.ZERO_IF_ALL
POSITIVE, SIGNED = Trait.POSITIVE, Trait.SIGNED


@dataclass(frozen=True)
class Operator:
    """`reads`: what a part of an output needs. `macs`: of its products. `view`: how it moves elements, if no more."""

    reads: Rule | None = None
    traits: Trait = Trait.NONE
    macs: Macs | None = None
    view: view.Build | None = None


def _moving(build: view.Build, reads: Rule | None = None, traits: Trait = Trait.NONE) -> Operator:
    return Operator(reads or moves.viewed(build), MOVES | SIGNED | traits, view=build)


STANDARD = {
    "Abs": Operator(elementwise, ZERO | POSITIVE),
    "Acos": Operator(elementwise),
    "Acosh": Operator(elementwise),
    "Add": Operator(broadcasting, ZERO_IF_ALL | SIGNED),
    "And": Operator(broadcasting, ZERO_IF_ANY),
    "Asin": Operator(elementwise),
    "Asinh": Operator(elementwise),
    "Atan": Operator(elementwise),
    "Atanh": Operator(elementwise),
    "Attention": Operator(rules.attention, macs=macs.attention),
    "BatchNormalization": Operator(rules.batch_norm),
    "Bernoulli": Operator(None, RANDOM),
    "BitwiseAnd": Operator(broadcasting),
    "BitwiseOr": Operator(broadcasting),
    "BitwiseXor": Operator(broadcasting),
    "Cast": Operator(elementwise, MOVES | SIGNED),
    "Ceil": Operator(elementwise),
    "Celu": Operator(elementwise),
    "Clip": Operator(elementwise, SIGNED),
    "Concat": Operator(moves.concat, ZERO_IF_ALL | SIGNED),
    "Conv": Operator(rules.conv, macs=macs.filters(1)),
    "ConvInteger": Operator(None, macs=macs.filters(1)),
    "ConvTranspose": Operator(None, macs=macs.filters_of_input),
    "Cos": Operator(elementwise),
    "Cosh": Operator(elementwise),
    "DFT": Operator(None, macs=no_formula),
    "DeformConv": Operator(None, macs=no_formula),
    "DequantizeLinear": Operator(contrib.scaled, ZERO),  # between the two 0 is the zero point
    "Div": Operator(broadcasting, ZERO),
    "Einsum": Operator(rules.einsum, macs=macs.einsum),
    "Elu": Operator(elementwise),
    "Equal": Operator(broadcasting),
    "Erf": Operator(elementwise, ZERO),
    "Exp": Operator(elementwise, POSITIVE),
    "Expand": _moving(view.expanded),
    "Flatten": _moving(view.reshaped),
    "Floor": Operator(elementwise),
    "GRU": Operator(None, macs=macs.recurrent),
    "Gather": _moving(view.gathered, moves.gather, PICKS),
    "GatherElements": Operator(None, PICKS),
    "GatherND": Operator(None, MOVES | SIGNED | PICKS),
    "Gelu": Operator(elementwise, ZERO),
    "Gemm": Operator(rules.gemm, macs=macs.gemm),
    "Greater": Operator(broadcasting),
    "GreaterOrEqual": Operator(broadcasting),
    "HardSigmoid": Operator(elementwise),
    "HardSwish": Operator(elementwise),
    "Identity": Operator(elementwise, MOVES | SIGNED),
    "IsInf": Operator(elementwise, ZERO),
    "IsNaN": Operator(elementwise, ZERO),
    "LSTM": Operator(None, macs=macs.recurrent),
    "LayerNormalization": Operator(rules.layer_norm),
    "LeakyRelu": Operator(elementwise),
    "Less": Operator(broadcasting),
    "LessOrEqual": Operator(broadcasting),
    "Log": Operator(elementwise),
    "LogSoftmax": Operator(rules.softmax),
    "MatMul": Operator(rules.matmul, ZERO_IF_ANY, macs.matrices(0, 1)),
    "MatMulInteger": Operator(contrib.integer_matmul((0, 1), (2,)), macs=macs.matrices(0, 1)),
    "Max": Operator(broadcasting, ZERO_IF_ALL | SIGNED),
    "Mean": Operator(broadcasting),
    "Min": Operator(broadcasting, ZERO_IF_ALL | SIGNED),
    "Mish": Operator(elementwise),
    "Mod": Operator(broadcasting),
    "Mul": Operator(broadcasting, ZERO_IF_ANY | SIGNED),
    "Multinomial": Operator(None, RANDOM),
    "Neg": Operator(elementwise, ZERO),
    "Not": Operator(elementwise),
    "Or": Operator(broadcasting, ZERO_IF_ALL),
    "PRelu": Operator(broadcasting),
    "Pow": Operator(broadcasting),
    "QLinearConv": Operator(None, macs=macs.filters(3)),
    "QLinearMatMul": Operator(contrib.integer_matmul((0, 3), (1, 2)), macs=macs.matrices(0, 3)),
    "QuantizeLinear": Operator(contrib.scaled, ZERO),
    "RMSNormalization": Operator(rules.layer_norm),
    "RNN": Operator(None, macs=macs.recurrent),
    "RandomNormal": Operator(None, RANDOM),
    "RandomNormalLike": Operator(None, RANDOM),
    "RandomUniform": Operator(None, RANDOM),
    "RandomUniformLike": Operator(None, RANDOM),
    "Reciprocal": Operator(elementwise),
    "ReduceL1": Operator(rules.reduce, SUMS),
    "ReduceL2": Operator(rules.reduce, SUMS),
    "ReduceLogSum": Operator(rules.reduce),
    "ReduceLogSumExp": Operator(rules.reduce, GREATEST),
    "ReduceMax": Operator(rules.reduce, ZERO | GREATEST),
    "ReduceMean": Operator(rules.reduce),
    "ReduceMin": Operator(rules.reduce),
    "ReduceProd": Operator(rules.reduce),
    "ReduceSum": Operator(rules.reduce, ZERO | SUMS),
    "ReduceSumSquare": Operator(rules.reduce, SUMS),
    "Relu": Operator(elementwise, ZERO | POSITIVE),
    "Reshape": _moving(view.reshaped),
    "Round": Operator(elementwise),
    "STFT": Operator(None, macs=no_formula),
    "ScatterND": Operator(moves.scatter),
    "Selu": Operator(elementwise),
    "Sigmoid": Operator(elementwise, POSITIVE),
    "Sign": Operator(elementwise, ZERO),
    "SimplifiedLayerNormalization": Operator(rules.layer_norm),
    "Sin": Operator(elementwise, ZERO),
    "Sinh": Operator(elementwise),
    "Slice": _moving(view.sliced),
    "Softmax": Operator(rules.softmax, POSITIVE),
    "Softplus": Operator(elementwise, POSITIVE),
    "Softsign": Operator(elementwise),
    "Split": _moving(view.split),
    "Sqrt": Operator(elementwise, ZERO | POSITIVE),
    "Squeeze": _moving(view.reshaped),
    "Sub": Operator(broadcasting, ZERO_IF_ALL),
    "Sum": Operator(broadcasting, ZERO_IF_ALL | SIGNED),
    "Swish": Operator(elementwise, ZERO),
    "Tan": Operator(elementwise, ZERO),
    "Tanh": Operator(elementwise, ZERO),
    "ThresholdedRelu": Operator(elementwise),
    "Tile": _moving(view.tiled),
    "Transpose": _moving(view.transposed),
    "Unsqueeze": _moving(view.reshaped),
    "Where": Operator(broadcasting),
    "Xor": Operator(broadcasting),
}
OF_MICROSOFT = {  # those of ONNX Runtime that the passes let stand; others are refused
    "Attention": Operator(None, macs=no_formula),
    "BiasAdd": Operator(),
    "BiasGelu": Operator(contrib.biased),
    "BiasSplitGelu": Operator(),
    "CausalConvWithState": Operator(None, macs=no_formula),
    "DequantizeLinear": Operator(contrib.scaled),
    "DynamicQuantizeLSTM": Operator(None, macs=no_formula),
    "DynamicQuantizeMatMul": Operator(None, macs=macs.matrices(0, 1)),  # a scale from all rows
    "EmbedLayerNormalization": Operator(),
    "FastGelu": Operator(contrib.biased),
    "FusedMatMul": Operator(contrib.fused_matmul, macs=macs.fused),
    "GatedRelativePositionBias": Operator(),
    "GatherBlockQuantized": Operator(contrib.gather_blocks),
    "Gelu": Operator(contrib.biased),
    "GroupQueryAttention": Operator(None, macs=macs.grouped),  # takes its queries' positions from their number
    "LayerNormalization": Operator(rules.layer_norm),
    "LongformerAttention": Operator(None, macs=no_formula),
    "MatMulIntegerToFloat": Operator(contrib.integer_matmul((0, 1), (2, 4)), macs=macs.matrices(0, 1)),
    "MatMulNBits": Operator(contrib.rows, macs=macs.blocks),
    "MoE": Operator(None, macs=no_formula),
    "MultiHeadAttention": Operator(contrib.multi_head, macs=macs.multi_head),
    "QAttention": Operator(None, macs=no_formula),
    "QEmbedLayerNormalization": Operator(),
    "QGemm": Operator(None, macs=no_formula),
    "QLinearAdd": Operator(broadcasting),
    "QLinearConcat": Operator(),
    "QLinearLeakyRelu": Operator(elementwise),
    "QLinearMul": Operator(broadcasting),
    "QLinearSigmoid": Operator(elementwise),
    "QMoE": Operator(None, macs=no_formula),
    "QuantizeLinear": Operator(contrib.scaled),
    "QuickGelu": Operator(contrib.biased),
    "RotaryEmbedding": Operator(contrib.rotary),
    "SimplifiedLayerNormalization": Operator(rules.layer_norm),
    "SkipLayerNormalization": Operator(contrib.skip_norm),
    "SkipSimplifiedLayerNormalization": Operator(contrib.skip_norm),
    "SparseAttention": Operator(None, macs=no_formula),
}
TABLE = {"": STANDARD, DOMAIN: OF_MICROSOFT}
UNKNOWN = Operator()


def operator_of(node: ir.Node) -> Operator:
    return TABLE.get(node.domain, {}).get(node.op_type, UNKNOWN)


def _named(chosen: Callable[[Operator], bool]) -> frozenset[str]:
    return frozenset(name for name, row in STANDARD.items() if chosen(row))


ELEMENTWISE = _named(lambda row: row.reads is elementwise)
BROADCASTING = _named(lambda row: row.reads is broadcasting)
REDUCING = _named(lambda row: row.reads is rules.reduce)
VIEWS = _named(lambda row: row.view is not None)
RESHAPES = _named(lambda row: row.view is view.reshaped)
SELECTING = VIEWS - RESHAPES - {"Transpose", "Expand"}
RESIZING = RESHAPES | {"Expand"}  # a part of the output has a shape of its own


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
