"""A network -> an ONNX graph that was compared with it: uint8 images in, float32 logits out."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import torch
from torch import Tensor, nn

from export.compiler.proof.tolerances import TOLERANCES
from export.equivalence import Comparison, EquivalenceError, compare, onnx_classifier, torch_classifier
from export.images import NamedImages, embedded_sample
from export.publishing.artifact import Artifact, onnx_artifact
from export.publishing.manifest import Network, Origin
from export.rewrites.fold import affine_of, fold_input_scale
from export.rewrites.pipeline import Rewrite, Step, apply
from models.checkpoint import Checkpoint
from models.config import INPUT_NAME, INPUT_SCALE, OUTPUT_NAME, ModelConfig
from models.macs import macs_per_image
from models.norms import ProgressiveRepBN

DEFAULT_OPSET = 20  # has Gelu; ONNX Runtime 1.19, in Triton 24.10, refuses 22 and later


@dataclass(frozen=True)
class Exported:
    """A checkpoint as a float32 ONNX file, which gave its answers on `images`."""

    checkpoint: Checkpoint
    artifact: Artifact
    steps: tuple[Step, ...]
    comparisons: tuple[Comparison, ...]
    images: NamedImages

    @property
    def onnx(self) -> bytes:
        return self.artifact.data

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    @property
    def macs(self) -> int:
        """Of one image before any rewrite."""
        return macs_per_image(self.checkpoint.model)


class Served(nn.Module):
    def __init__(self, model: nn.Module, scale_folded: bool) -> None:
        super().__init__()
        self.model = model
        self.scale_folded = scale_folded

    def forward(self, image: Tensor) -> Tensor:
        x = image.to(next(self.model.parameters()).dtype)  # (B, C, H, W)
        logits: Tensor = self.model(x if self.scale_folded else x * INPUT_SCALE)  # (B, num_classes)
        return logits


def export(
    checkpoint: Checkpoint,
    rewrites: Sequence[Rewrite],
    required: Sequence[Rewrite] = (),
    opset: int = DEFAULT_OPSET,
    images: NamedImages | None = None,
) -> Exported:
    """Compares the rewritten network and the export on `images`, by default the embedded images.

    metadata_props hold what the manifest tells of the origin. Raises RewriteError or EquivalenceError.
    """
    _check_trained(checkpoint.model)
    embedded = embedded_sample(checkpoint.config)
    images = images or embedded
    exact = copy.deepcopy(checkpoint.model).double()
    served, steps = rewrite(exact, rewrites, required)
    before, after = torch_classifier(Served(exact, scale_folded=False)), torch_classifier(served)
    compared = [compare("rewritten, float64", before, after, images.images, TOLERANCES["float64"])] if steps else []
    proto = to_onnx(copy.deepcopy(served).float(), checkpoint.config, opset)  # `exact` may be in it
    check_interface(proto, checkpoint.config)
    trained = torch_classifier(Served(checkpoint.model, scale_folded=False))
    exported = onnx_classifier(proto.SerializeToString())
    tolerance = TOLERANCES["float32"]
    compared.append(compare("ONNX, float32", trained, exported, images.images, tolerance, exact=before))
    network, origin = _describe(checkpoint, steps, opset, compared[-1], images.of)
    artifact = onnx_artifact(proto, embedded.images[:1], network, origin)
    return Exported(checkpoint, artifact, tuple(steps), tuple(compared), images)


def _describe(
    checkpoint: Checkpoint, steps: Sequence[Step], opset: int, compared: Comparison, images: str
) -> tuple[Network, Origin]:
    metrics = checkpoint.metrics
    errors = compared.max_abs_error, compared.tolerance
    network = Network(checkpoint.config, checkpoint.sha256, metrics, *errors, metrics.get("temperature"))
    facts = {
        "opset": opset,
        "proved_on": images,
        "checkpoint": checkpoint.path.name,
        "torch": torch.__version__,
        **{name: metrics[name] for name in ("calibration_error",) if name in metrics},
    }
    return network, Origin(tuple(step.rewrite for step in steps if not step.left_out), facts=facts)


def _check_trained(model: nn.Module) -> None:
    """Raises RewriteError for a progressive RepBN that still contains LayerNorm."""
    for name, module in model.named_modules():
        if isinstance(module, ProgressiveRepBN):
            affine_of(name, module)


def rewrite(model: nn.Module, rewrites: Sequence[Rewrite], required: Sequence[Rewrite]) -> tuple[Served, list[Step]]:
    rewritten, steps = apply(model, rewrites, required)
    scale_folded = any(step.rewrite == fold_input_scale.__name__ and not step.left_out for step in steps)
    return Served(rewritten, scale_folded), steps


def to_onnx(model: nn.Module, config: ModelConfig, opset: int) -> onnx.ModelProto:
    """uint8 (batch, C, H, W) -> float32 (batch, num_classes); batch is dynamic."""
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
    wanted = (
        (INPUT_NAME, proto.graph.input, config.input_shape, onnx.TensorProto.UINT8),
        (OUTPUT_NAME, proto.graph.output, (config.num_classes,), onnx.TensorProto.FLOAT),
    )
    for name, found, shape, dtype in wanted:
        if [value.name for value in found] != [name]:
            raise EquivalenceError(f"ONNX: expected one tensor {name}, found {[value.name for value in found]}")
        tensor = found[0].type.tensor_type
        batch, *rest = tensor.shape.dim
        if not batch.dim_param:
            raise EquivalenceError(f"ONNX {name}: expected a dynamic batch dimension, found {batch.dim_value}")
        if (sides := tuple(side.dim_value for side in rest)) != shape:
            raise EquivalenceError(f"ONNX {name}: expected {shape} after the batch, found {sides}")
        if tensor.elem_type != dtype:
            type_name = onnx.TensorProto.DataType.Name
            raise EquivalenceError(f"ONNX {name}: expected {type_name(dtype)}, found {type_name(tensor.elem_type)}")
