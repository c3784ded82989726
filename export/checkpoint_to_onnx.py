"""Exports a checkpoint to ONNX, rewrites the graph, and compares it with the network and with the plain graph.

In: a checkpoint, and the `Form` of the graph. Out: `Exported`, whose graph maps uint8 images to float32 logits.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from dataclasses import dataclass, replace
from typing import Literal

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from export.compare_logits import (
    Comparison,
    EquivalenceError,
    compare,
    double_classifier,
    float32_error,
    onnx_classifier,
    torch_classifier,
)
from export.compiler.graph.inline_functions import without_functions
from export.compiler.operators.costs import Work
from export.compiler.passes import PASSES
from export.compiler.pipeline import Rewritten, Step, optimise
from export.compiler.proof.tolerances import TOLERANCES
from export.engines.fuse_attention import fuse_attention
from export.errors import RewriteError
from export.publishing.artifact import Artifact, onnx_artifact
from export.publishing.manifest import Network, Origin
from export.rewrite_file import clean
from export.sample_images import NamedImages, embedded_sample
from models.checkpoints.checkpoint import Checkpoint
from models.networks.config import INPUT_NAME, INPUT_SCALE, OUTPUT_NAME, ModelConfig
from models.networks.foldable_norms import NeverAffine, NotAffine, TokenNorm

DEFAULT_OPSET = 20  # has Gelu; ONNX Runtime 1.19, in Triton 24.10, refuses 22 and later
ONE_IMAGE = {"batch": 1}  # for counting costs
FOLDING = ("fold-affine", "carry-biases", "split-products", "tidy")  # the passes that fold BatchNorm

Rewrites = Literal["none", "bn", "all"]


@dataclass(frozen=True)
class Form:
    """What the ONNX graph looks like.

    `rewrites`: "bn" folds BatchNorm alone. `fuse_attention`: attention has the form that GPU kernels fuse.
    """

    rewrites: Rewrites = "bn"
    fuse_attention: bool = False
    opset: int = DEFAULT_OPSET

    @property
    def passes(self) -> tuple[str, ...]:
        """Names of the compiler's passes that run."""
        return {"none": (), "bn": FOLDING, "all": PASSES}[self.rewrites]


@dataclass(frozen=True)
class Exported:
    """A checkpoint as a float32 ONNX file.

    `work`: multiply-accumulates of an image before any rewrite. `steps`: what each pass changed. `comparisons`: of the
    logits on `images`.
    """

    checkpoint: Checkpoint
    artifact: Artifact
    work: Work
    steps: tuple[Step, ...]
    comparisons: tuple[Comparison, ...]
    images: NamedImages

    @property
    def onnx(self) -> bytes:
        return self.artifact.data

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config


class Uint8Network(nn.Module):
    """A network with the scaling of its input: uint8 (B, C, H, W) -> logits (B, num_classes)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        x = image.to(next(self.model.parameters()).dtype)  # (B, C, H, W)
        logits: Tensor = self.model(x * INPUT_SCALE)  # (B, num_classes)
        return logits


def export(checkpoint: Checkpoint, form: Form | None = None, images: NamedImages | None = None) -> Exported:
    """Exports, rewrites and compares: the rewritten graph with the plain graph, and the file with the network.

    `form`: by default BatchNorm is folded. `images`: of the comparisons; by default those that come with the project.
    The file's metadata_props repeat the origin in its manifest. Raises RewriteError, NotSupported or EquivalenceError.
    """
    form, embedded = form or Form(), embedded_sample(checkpoint.config)
    images = images or embedded
    check_network(checkpoint.model, folds=form.rewrites == "bn")
    plain = to_onnx(Uint8Network(checkpoint.model), checkpoint.config, form.opset)
    rewritten = rewrite(plain, form)
    proto, comparisons = plain, []
    before = double_classifier(without_functions(ir.from_proto(plain)))
    if rewritten.steps:
        after = double_classifier(rewritten.model)
        comparisons = [compare("rewritten, float64", before, after, images.images, TOLERANCES["float64"])]
        proto = cleaned_proto(plain, rewritten)
    check_interface(proto, checkpoint.config)
    trained, exact = (Uint8Network(model) for model in (checkpoint.model, copy.deepcopy(checkpoint.model).double()))
    stages = "ONNX, float32", torch_classifier(trained), onnx_classifier(proto.SerializeToString())
    # PyTorch and ONNX Runtime round in other orders: on few images the error of one may be a third of the other's.
    rounding = float32_error("ONNX, float32", before, onnx_classifier(plain.SerializeToString()), images.images)
    tolerance, reference = TOLERANCES["float32"], torch_classifier(exact)
    comparison = compare(*stages, images.images, tolerance, exact=reference, float32_error=rounding)
    network, origin = _describe(checkpoint, rewritten.applied, form.opset, comparison, images.of)
    artifact = onnx_artifact(proto, embedded.images[:1], network, origin)
    return Exported(checkpoint, artifact, rewritten.work, rewritten.steps, (*comparisons, comparison), images)


def rewrite(plain: onnx.ModelProto, form: Form) -> Rewritten:
    """Runs the form's passes on the plain graph.

    Raises RewriteError if a BatchNormalization that was to be folded stays: no linear layer is next to it.
    """
    rewritten = optimise(plain, passes=form.passes, sizes=ONE_IMAGE)
    unfolded = [node.name for node in rewritten.model.graph if node.op_type == "BatchNormalization"]
    if unfolded and form.passes:
        raise RewriteError(f"{unfolded[0]}: expected a linear layer beside this BatchNormalization, found none")
    if not form.fuse_attention:
        return rewritten
    outcome = fuse_attention(rewritten.model, ONE_IMAGE)
    work = rewritten.steps[-1].work if rewritten.steps else rewritten.work
    step = Step("fuse-attention", work, outcome.sites, outcome.refusals)
    return replace(rewritten, steps=(*rewritten.steps, step))


def cleaned_proto(plain: onnx.ModelProto, rewritten: Rewritten) -> onnx.ModelProto:
    """The rewritten graph with the declared outputs of the plain graph, without the shapes and notes of the passes."""
    return ir.to_proto(clean(rewritten.model, ir.from_proto(plain), ()))


def check_network(model: nn.Module, folds: bool) -> None:
    """Raises RewriteError for numbers that are not finite, negative variances, and norms that are not affine yet.

    `folds`: BatchNorm is to be folded, so norms that never become affine are refused, too.
    """
    for name, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            number = tensor[~tensor.isfinite()].flatten()[0].item()
            raise RewriteError(f"{name}: expected finite numbers, found {number}")
        if name.endswith(("running_var", "running_square")) and (tensor < 0).any():
            raise RewriteError(f"{name}: expected variances of at least 0, found {tensor.min().item()}")
    for name, module in model.named_modules():
        try:
            if isinstance(module, TokenNorm):
                module.check_affine()
        except NeverAffine as reason:
            if folds:
                raise RewriteError(f"{name}: {reason}") from reason
        except NotAffine as reason:
            raise RewriteError(f"{name}: {reason}") from reason


def _describe(
    checkpoint: Checkpoint, applied: tuple[str, ...], opset: int, comparison: Comparison, images: str
) -> tuple[Network, Origin]:
    """The manifest's fields. `applied`: names of the passes. `images`: the source of the compared images."""
    metrics, errors = checkpoint.metrics, (comparison.max_abs_error, comparison.tolerance)
    calibration = metrics.get("temperature"), metrics.get("evidence_limit")
    network = Network(checkpoint.config, checkpoint.sha256, metrics, *errors, *calibration)
    facts = {
        "opset": opset,
        "proved_on": images,
        "checkpoint": checkpoint.path.name,
        "torch": torch.__version__,
        **{name: metrics[name] for name in ("calibration_error",) if name in metrics},
    }
    return network, Origin(applied, facts=facts)


def to_onnx(model: nn.Module, config: ModelConfig, opset: int) -> onnx.ModelProto:
    """The graph as trained: uint8 (batch, C, H, W) -> float32 (batch, num_classes); the batch dimension is dynamic."""
    # The registry logs every missing torchvision operator.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    example = torch.zeros(2, *config.input_shape, dtype=torch.uint8)  # the exporter takes a batch of 1 for a constant
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            copy.deepcopy(model).eval().requires_grad_(False),  # a fifth quicker, the same graph
            (example,),
            dynamo=True,
            opset_version=opset,
            input_names=[INPUT_NAME],
            output_names=[OUTPUT_NAME],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    proto = program.model_proto
    for part in (*proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        del part.metadata_props[:]  # stack traces with the folders of this machine
    onnx.checker.check_model(proto, full_check=True)
    return proto


def check_interface(proto: onnx.ModelProto, config: ModelConfig) -> None:
    """Raises EquivalenceError for other names, shapes or dtypes of input and output than clients expect."""
    expected = (
        (INPUT_NAME, proto.graph.input, config.input_shape, onnx.TensorProto.UINT8),
        (OUTPUT_NAME, proto.graph.output, (config.num_classes,), onnx.TensorProto.FLOAT),
    )
    for name, values, shape, dtype in expected:
        if [value.name for value in values] != [name]:
            raise EquivalenceError(f"ONNX: expected one tensor {name}, found {[value.name for value in values]}")
        tensor = values[0].type.tensor_type
        batch, *image_dims = tensor.shape.dim
        if not batch.dim_param:
            raise EquivalenceError(f"ONNX {name}: expected a dynamic batch dimension, found {batch.dim_value}")
        if (sides := tuple(dim.dim_value for dim in image_dims)) != shape:
            raise EquivalenceError(f"ONNX {name}: expected {shape} after the batch, found {sides}")
        if tensor.elem_type != dtype:
            type_name = onnx.TensorProto.DataType.Name
            raise EquivalenceError(f"ONNX {name}: expected {type_name(dtype)}, found {type_name(tensor.elem_type)}")
