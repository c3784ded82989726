"""A folder as optimum writes it: model.onnx and its weights beside config and tokenizer, from PyTorch's older exporter.

Attention is written out, a mask is a product or Where, and up to opset 14 norms are single operators.
"""

from __future__ import annotations

import logging
import math
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from foreign_networks import DIM, HEADS, VOCABULARY, Block, Encoder, manifest_of
from torch import Tensor, nn

NAMES = ["input_ids", "attention_mask", "token_type_ids"]
LOWEST = torch.finfo(torch.float32).min


class WrittenOut(Block):
    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        assert isinstance(self.qkv, nn.ModuleList)
        sizes = (*x.size()[:-1], HEADS, DIM // HEADS)
        q, k, v = (layer(x).view(sizes).permute(0, 2, 1, 3) for layer in self.qkv)
        scores = q @ k.transpose(-1, -2) / math.sqrt(DIM // HEADS)
        if mask is not None and mask.dtype == torch.bool:  # as DistilBERT
            scores = scores.masked_fill(mask.expand(scores.shape), LOWEST)
        elif mask is not None:
            scores = scores + mask
        y = (scores.softmax(-1) @ v).permute(0, 2, 1, 3).contiguous()
        return self.out(y.view((*y.size()[:-2], DIM)))


class Bert(Encoder):
    """`mask`: product or where. The output: hidden state, or logits of the first token."""

    def __init__(self, mask: str, classify: bool) -> None:
        super().__init__()
        self.mask, self.classify = mask, classify
        self.kinds = nn.Embedding(2, DIM)
        weights = self.blocks.state_dict()
        self.blocks = nn.ModuleList(WrittenOut(joined=False) for _ in range(2))
        self.blocks.load_state_dict(weights)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        places = torch.arange(32).expand((1, -1))[:, : input_ids.size()[1]]
        x = self.words(input_ids) + self.kinds(token_type_ids) + self.places(places)
        mask = attention_mask[:, None, None, :]
        mask = mask == 0 if self.mask == "where" else (1.0 - mask.to(x.dtype)) * -10000.0
        for block in self.blocks:
            x = block(x, mask)
        return self.head(torch.tanh(x[:, 0])) if self.classify else x


def write(folder: Path, network: Bert, opset: int) -> Path:
    """Returns model.onnx; its weights are in model.onnx_data."""
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    ids, path = torch.randint(0, VOCABULARY, (2, 16)), folder / "model.onnx"
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network.eval(),
            (ids, torch.ones_like(ids), torch.zeros_like(ids)),
            path,
            input_names=NAMES,
            output_names=["logits" if network.classify else "last_hidden_state"],
            dynamic_axes={name: {0: "batch_size", 1: "sequence_length"} for name in NAMES},
            opset_version=opset,
            dynamo=False,
        )
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("opset", "mask", "classify"),
    [(11, "where", True), (14, "product", False), (17, "where", False)],
)
def test_a_folder_of_optimum(opset: int, mask: str, classify: bool, tmp_path: Path) -> None:
    folder, out = tmp_path / "minilm", tmp_path / "first_token" / "model.onnx"
    folder.mkdir()
    path = write(folder, Bert(mask, classify), opset)
    held = {file.name: file.read_bytes() for file in folder.iterdir()}
    reads = () if classify else ("--read", "last_hidden_state[:,0]")
    manifest = manifest_of(path, "-o", out, *reads)
    assert {"read-rows", "absorb-queries"} <= {*manifest["rewrites"]}
    assert manifest["macs"]["absorb-queries"] < 0.56 * manifest["macs"]["before"]
    assert held == {file.name: file.read_bytes() for file in folder.iterdir()}
    rng = np.random.default_rng(5)
    for batch, length in ((1, 4), (5, 23)):
        feeds = {name: rng.integers(0, 2, (batch, length)) for name in NAMES}
        feeds["input_ids"], feeds["attention_mask"][:, 0] = rng.integers(0, VOCABULARY, (batch, length)), 1
        before, after = (ort.InferenceSession(file).run(None, feeds)[0] for file in (path, out))
        before = before if classify else before[:, 0]
        assert np.abs(before - after).max() < 1e-5 * np.abs(before).max()
