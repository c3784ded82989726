"""A network -> a proven ONNX graph that takes the served tensors: uint8 images in, float32 logits out.

In: a checkpoint and the rewrites wanted. Out: `Exported`, the bytes of the graph and a manifest of how it came
about; or an error, for a graph that does not answer as the checkpoint does is never handed on.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from export.equivalence import (
    AxesDiffer,
    Classifier,
    DtypesDiffer,
    Images,
    Logits,
    NamesDiffer,
    Proof,
    ShapesDiffer,
    prove,
)
from export.rewrites import fold_attention_biases, fold_batchnorm, fold_input_scale
from models.checkpoint import Checkpoint
from models.cnn import CNN
from models.config import INPUT_NAME, INPUT_SCALE, OUTPUT_NAME, ModelConfig
from models.data import load_digits

DEFAULT_OPSET = 20  # has Gelu; ONNX Runtime 1.19, in Triton 24.10, refuses 22 and later
FLOAT64_TOLERANCE = 1e-10
FLOAT32_TOLERANCE = 1e-4
PROOF_IMAGES = 64


@dataclass(frozen=True)
class Exported:
    """A proven ONNX file, as bytes, and its manifest, which is JSON and holds what is also in the file's metadata."""

    onnx: bytes
    config: ModelConfig
    manifest: dict[str, Any]
    proofs: tuple[Proof, ...]


class Served(nn.Module):
    """The network as it is served: uint8 pixels in, cast and, unless the scale is folded, multiplied by 1/255."""

    def __init__(self, model: nn.Module, scale_folded: bool) -> None:
        super().__init__()
        self.model = model
        self.scale_folded = scale_folded

    def forward(self, image: Tensor) -> Tensor:
        x = image.to(next(self.model.parameters()).dtype)  # (B, C, H, W)
        logits: Tensor = self.model(x if self.scale_folded else x * INPUT_SCALE)  # (B, num_classes)
        return logits


def export(checkpoint: Checkpoint, fuse_bn: bool, opset: int = DEFAULT_OPSET) -> Exported:
    """Rewrites the network of `checkpoint`, exports it and proves both steps on real digits.

    Raises RewriteError or EquivalenceError. The file's metadata_props hold the manifest's fields but its own hash.
    """
    images = proof_images(checkpoint.config)
    trained = Served(checkpoint.model, scale_folded=False)
    rewritten, rewrites, proofs = trained, list[str](), list[Proof]()
    if fuse_bn:
        exact = copy.deepcopy(checkpoint.model).double()
        folded, rewrites = fuse(exact)
        before = torch_classifier(Served(exact, scale_folded=False))
        proofs.append(prove("rewritten, float64", before, torch_classifier(folded), images, FLOAT64_TOLERANCE))
        rewritten = folded.float()
    proto = to_onnx(rewritten, checkpoint.config, opset)
    check_interface(proto, checkpoint.config)
    stage = prove(
        "ONNX, float32",
        torch_classifier(trained),
        onnx_classifier(proto.SerializeToString()),
        images,
        FLOAT32_TOLERANCE,
    )
    proofs.append(stage)
    manifest = {
        "model_config": json.loads(checkpoint.config.to_json()),
        "rewrites": rewrites,
        "opset": opset,
        "max_abs_error": stage.max_abs_error,
        "tolerance": stage.tolerance,
        "checkpoint": checkpoint.path.name,
        "checkpoint_sha256": checkpoint.sha256,
        "metrics": checkpoint.metrics,
        "torch": torch.__version__,
    }
    for key, value in manifest.items():
        proto.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    data = proto.SerializeToString()
    return Exported(
        data, checkpoint.config, manifest | {"onnx_sha256": hashlib.sha256(data).hexdigest()}, tuple(proofs)
    )


def fuse(model: nn.Module) -> tuple[Served, list[str]]:
    """All that `--fuse-bn` does to `model`, in its dtype: the network as it is served, and the rewrites by name."""
    rewrites = [fold_batchnorm, fold_attention_biases, fold_input_scale]
    if isinstance(model, CNN):
        rewrites.remove(fold_attention_biases)
    for rewrite in rewrites:
        model = rewrite(model)
    return Served(model, scale_folded=True), [rewrite.__name__ for rewrite in rewrites]


def to_onnx(model: nn.Module, config: ModelConfig, opset: int) -> onnx.ModelProto:
    """The graph of `model`, uint8 (batch, C, H, W) -> float32 (batch, num_classes), its batch dimension dynamic."""
    # The registry names each torchvision operator that it cannot offer, none of which is used.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    example = torch.zeros(2, *config.input_shape, dtype=torch.uint8)  # a batch of one would be taken for a constant
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # of the exporter's own deprecations
        program = torch.onnx.export(
            model.eval(),
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
    onnx.checker.check_model(proto, full_check=True)
    return proto


def check_interface(proto: onnx.ModelProto, config: ModelConfig) -> None:
    """Compares the graph's input and output with what is served: names, then dynamic axes, shapes, dtypes."""
    wanted = (
        (INPUT_NAME, proto.graph.input, config.input_shape, onnx.TensorProto.UINT8),
        (OUTPUT_NAME, proto.graph.output, (config.num_classes,), onnx.TensorProto.FLOAT),
    )
    for name, found, shape, dtype in wanted:
        if [value.name for value in found] != [name]:
            raise NamesDiffer(f"ONNX: expected one tensor {name}, found {[value.name for value in found]}")
        tensor = found[0].type.tensor_type
        batch, *rest = tensor.shape.dim
        if not batch.dim_param:
            raise AxesDiffer(f"ONNX {name}: expected a dynamic batch dimension, found {batch.dim_value}")
        if (sides := tuple(side.dim_value for side in rest)) != shape:
            raise ShapesDiffer(f"ONNX {name}: expected {shape} after the batch, found {sides}")
        if tensor.elem_type != dtype:
            type_name = onnx.TensorProto.DataType.Name
            raise DtypesDiffer(f"ONNX {name}: expected {type_name(dtype)}, found {type_name(tensor.elem_type)}")


def proof_images(config: ModelConfig) -> Images:
    """uint8 (64, C, H, W): real test digits where the model reads such images, else uniform noise drawn by seed."""
    if config.input_shape == (1, 28, 28):
        return load_digits().test_images[:PROOF_IMAGES]
    return np.random.default_rng(0).integers(0, 256, (PROOF_IMAGES, *config.input_shape), np.uint8)


def torch_classifier(model: nn.Module) -> Classifier:
    """`model`, in eval mode, as a function of numpy arrays."""
    model.eval()

    def classify(images: Images) -> Logits:
        with torch.inference_mode():
            logits: Logits = model(torch.tensor(images)).numpy()
        return logits

    return classify


def onnx_classifier(data: bytes) -> Classifier:
    """The ONNX file `data`, run by ONNX Runtime on the CPU, as a function of numpy arrays."""
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    run: Callable[..., list[Logits]] = session.run
    return lambda images: run([OUTPUT_NAME], {INPUT_NAME: images})[0]
