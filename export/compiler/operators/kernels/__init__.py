"""Kernels in double for operators that onnx's reference computes slowly, wrongly or not at all.

No torch: `vitbn rewrite` runs without it.
"""

from __future__ import annotations

from onnx.reference.op_run import OpRun

from export.compiler.operators.kernels.activations import Erf, Gelu, Hardmax, LogSoftmax, Softmax
from export.compiler.operators.kernels.attention import Attention
from export.compiler.operators.kernels.moves import GatherElements, Pad, Scatter
from export.compiler.operators.kernels.norms import (
    LRN,
    BatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    LpNormalization,
    MeanVarianceNormalization,
    RMSNormalization,
    SimplifiedLayerNormalization,
)
from export.compiler.operators.kernels.recurrent import GRU, LSTM, RNN
from export.compiler.operators.kernels.resampling import GridSample, Resize
from export.compiler.operators.kernels.windows import (
    AveragePool,
    Conv,
    ConvTranspose,
    GlobalLpPool,
    LpPool,
    MaxPool,
)

KERNELS: list[type[OpRun]] = [
    Attention,
    AveragePool,
    BatchNormalization,
    Conv,
    ConvTranspose,
    Erf,
    GRU,
    GatherElements,
    Gelu,
    GlobalLpPool,
    GridSample,
    GroupNormalization,
    Hardmax,
    InstanceNormalization,
    LRN,
    LSTM,
    LayerNormalization,
    LogSoftmax,
    LpNormalization,
    LpPool,
    MaxPool,
    MeanVarianceNormalization,
    Pad,
    RMSNormalization,
    RNN,
    Resize,
    Scatter,
    SimplifiedLayerNormalization,
    Softmax,
]
