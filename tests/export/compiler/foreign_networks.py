"""Small networks in published architectures, exported by both of PyTorch's exporters."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import exports_once
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
import torch.nn.functional as F
from commands import invoke, ok
from numpy.typing import NDArray
from onnx_text import parsed
from torch import Tensor, nn

from export.compiler.analyses.demand import analyse
from export.compiler.errors import ProofFailed
from export.compiler.graph.def_use import remove_unused
from export.compiler.graph.requested_output_parts import parse_read
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators.evaluate import evaluate
from export.compiler.passes.materialise_parts import Materialiser
from export.compiler.passes.prepare import prepare
from export.compiler.proof.compare import Errors, Proof
from export.compiler.proof.inputs import draw as draw_feeds
from export.compiler.proof.inputs import size_rounds
from export.compiler.proof.rounds import picked
from export.compiler.proof.runner import double_answers
from export.rewrite import rewrite
from export.rewrite_file import Request, Written, rewrite_file

run, wrote = partial(invoke, rewrite), partial(ok, rewrite)
VOCABULARY, DIM, HEADS, CLASSES = 50, 16, 2, 3


class Block(nn.Module):
    """BERT's post-norm block; `joined`: the pre-norm block of timm's ViT with one query-key-value Linear."""

    def __init__(self, joined: bool, dim: int = DIM) -> None:
        super().__init__()
        self.joined = joined
        self.qkv = nn.Linear(dim, 3 * dim) if joined else nn.ModuleList(nn.Linear(dim, dim) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        b, n, d = x.shape
        if isinstance(self.qkv, nn.Linear):
            q, k, v = self.qkv(x).reshape(b, n, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = (layer(x).view(b, n, HEADS, -1).transpose(1, 2) for layer in self.qkv)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(b, n, d))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.joined:
            x = x + self.attend(self.norm1(x), mask)
            return x + self.down(F.gelu(self.up(self.norm2(x))))
        x = self.norm1(x + self.attend(x, mask))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    """Reads token ids and a mask; the head reads `pool`: cls, last, mean, both, or hidden for all."""

    def __init__(self, pool: str = "cls", joined: bool = False, depth: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pool = pool
        self.words, self.places = nn.Embedding(VOCABULARY, DIM), nn.Embedding(32, DIM)
        self.blocks = nn.ModuleList(Block(joined) for _ in range(depth))
        self.head = nn.Linear(DIM, CLASSES)
        draw(self)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        n = input_ids.shape[1]
        x = self.words(input_ids) + self.places(torch.arange(n))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for block in self.blocks:
            x = block(x, mask)
        match self.pool:
            case "cls":
                return self.head(torch.tanh(x[:, 0]))
            case "last":
                last = (torch.arange(n) * (input_ids != 0).int()).argmax(-1)  # that is no padding
                return self.head(x)[torch.arange(x.shape[0]), last]
            case "mean":
                return self.head(x.mean(1))
            case "both":
                return self.head(x[:, 0] + x[:, 1:].mean(1))
            case _:
                return x


class Vision(nn.Module):
    """Pre-norm; `rows` = 2: a distilled ViT, with heads on two rows."""

    def __init__(self, rows: int = 1, norm: type[nn.Module] = nn.Identity, depth: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows = rows
        self.patch, self.norm = nn.Conv2d(3, DIM, 4, 4), norm()
        self.extra = nn.Parameter(torch.randn(1, rows, DIM))
        self.place = nn.Parameter(torch.randn(1, 16 + rows, DIM))
        self.blocks = nn.ModuleList(Block(joined=True) for _ in range(depth))
        self.last = nn.LayerNorm(DIM)
        self.heads = nn.ModuleList(nn.Linear(DIM, CLASSES) for _ in range(rows))
        draw(self)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.extra.expand(x.shape[0], -1, -1), x], dim=1) + self.place
        for block in self.blocks:
            x = block(x, None)
        x = self.last(x)
        return sum((head(x[:, row]) for row, head in enumerate(self.heads)), torch.zeros(()))


def draw(network: nn.Module) -> None:
    """Defaults would hide faults."""
    torch.manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.LayerNorm | nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.running_mean is not None:
            module.running_mean.uniform_(-0.5, 0.5)
            assert module.running_var is not None
            module.running_var.uniform_(0.5, 2.0)
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            nn.init.uniform_(module.bias, -0.5, 0.5)
    network.eval()


def export(network: nn.Module, exporter: str = "old", opset: int = 17) -> onnx.ModelProto:
    """Batch is free and, for text, length; `exporter`: old or new."""
    text, ids = isinstance(network, Encoder), torch.randint(0, VOCABULARY, (2, 6))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)} if text else {"image": torch.randn(2, 3, 16, 16)}
    axes = [{0: "batch", 1: "seq"} if text else {0: "batch"}] * len(given)
    return traced(network, (*given.values(),), axes, [*given], ["y"], exporter, opset)


def traced(
    network: nn.Module,
    arguments: tuple[Tensor | list[Tensor], ...],
    axes: Sequence[Any],
    inputs: list[str],
    outputs: list[str],
    exporter: str,
    opset: int,
) -> onnx.ModelProto:
    """`axes`: the free axes of each argument, or of each tensor in its list."""
    options = {"exporter": exporter, "opset": opset}

    def trace() -> onnx.ModelProto:
        buffer = io.BytesIO()
        names: dict[str, Any] = {"input_names": inputs, "output_names": outputs, "opset_version": opset}
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if exporter == "old":
                flat = [each for free in axes for each in (free if isinstance(free, list) else [free])]
                free = dict(zip(inputs, flat, strict=True))
                torch.onnx.export(network, arguments, buffer, dynamic_axes=free, dynamo=False, **names)
                return onnx.load_from_string(buffer.getvalue())
            with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):  # it costs more than it saves
                shapes = tuple(axes)
                program = torch.onnx.export(
                    network, arguments, dynamic_shapes=shapes, dynamo=True, verbose=False, **names
                )
            assert program is not None
            program.save(buffer)
            return onnx.load_from_string(buffer.getvalue())

    return exports_once.of_a_test(network, options, trace)


def model(proto: onnx.ModelProto) -> ir.Model:
    return ir.from_proto(proto)


def manifest_of(*arguments: object) -> dict[str, Any]:
    """What `vitbn rewrite --json` prints where it writes a file."""
    manifest: dict[str, Any] = json.loads(wrote(*arguments, "--json").output)
    return manifest


def parse(text: str, **initializers: Any) -> ir.Model:
    return ir.from_proto(parsed(text, **initializers))


def written(network: ir.Model | onnx.ModelProto, folder: Path, *reads: str, **options: Any) -> Written:
    """The network as in.onnx of the folder, rewritten into out.onnx; `options`: of the request."""
    onnx.save(ir.to_proto(network) if isinstance(network, ir.Model) else network, folder / "in.onnx")
    return rewrite_file(folder / "in.onnx", folder / "out.onnx", Request(reads, **options))


def proof_fails(network: ir.Model | onnx.ModelProto, folder: Path, *reads: str, **options: Any) -> None:
    """And no file is written."""
    (folder / "out.onnx").unlink(missing_ok=True)
    with pytest.raises(ProofFailed):
        written(network, folder, *reads, **options)
    assert not (folder / "out.onnx").exists()


def session_of(graph: ir.Model | onnx.ModelProto) -> ort.InferenceSession:
    """ONNX Runtime without its warnings."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    proto = ir.to_proto(graph) if isinstance(graph, ir.Model) else graph
    return ort.InferenceSession(proto.SerializeToString(), options)


def answers(graph: ir.Model | onnx.ModelProto, feeds: Mapping[str, Any]) -> list[NDArray[Any]]:
    """ONNX Runtime's."""
    found: list[NDArray[Any]] = session_of(graph).run(None, feeds)
    return found


def apart(left: ir.Model, right: ir.Model, *shapes: tuple[int, ...]) -> float:
    """The largest difference in double, relative to the largest number, for first inputs of these shapes."""
    errors = []
    for seed, shape in enumerate(shapes):
        feeds = {str(left.graph.inputs[0].name): np.random.default_rng(seed).standard_normal(shape)}
        before, after = (np.asarray(evaluate(each, feeds)[0], np.float64) for each in (left, right))
        assert before.shape == after.shape
        errors.append(np.abs(before - after).max() / np.abs(before).max())
    return float(max(errors))


def check_equal(left: ir.Model, right: ir.Model, feeds: Mapping[str, Any]) -> None:
    """All outputs, in double."""
    for before, after in zip(evaluate(left, feeds), evaluate(right, feeds), strict=True):
        assert before.shape == after.shape
        np.testing.assert_allclose(after, before, rtol=1e-13, atol=1e-13)


def check_random(original: ir.Model, rewritten: ir.Model, **shapes: tuple[int, ...]) -> None:
    """Random inputs of these shapes, in double and in ONNX Runtime, whose rules for empty axes differ."""
    rng = np.random.default_rng(1)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    check_equal(original, rewritten, feeds)
    for before, after in zip(answers(original, feeds), answers(rewritten, feeds), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)


def with_read_rows_alone(original: ir.Model) -> ir.Model:
    """A copy in which only what the outputs read is computed, whether or not that saves work."""
    prepare(cut := original.clone())
    shapes = Shapes(cut.graph)
    Materialiser(shapes, analyse(shapes)[0]).run()
    remove_unused(cut)
    cut.graph.sort()
    return cut


def proved(original: ir.Model, rewritten: ir.Model, reads: Sequence[str] = ()) -> Proof:
    """Both in float64, on inputs of three sizes."""
    prepare(drawn := original.clone())
    double, parts = Errors("float64", "the original"), [parse_read(read) for read in reads]
    names = [str(value.name) for value in original.graph.outputs]
    for seed, sizes in enumerate(next(size_rounds(drawn.graph)).needed):
        feeds = draw_feeds(drawn.graph, sizes, seed)
        expected = dict(zip(names, double_answers(original, feeds), strict=True))
        double.add(picked(expected, parts), double_answers(rewritten, feeds))
    return double.proof()
