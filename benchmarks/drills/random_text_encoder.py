"""A small transformer for padded texts, with random weights, as an ONNX file.

In: a folder. Out: a file. Inputs: `input_ids` and `attention_mask`, int64 (texts, tokens). Outputs: `hidden` float32
(texts, tokens, WIDTH), and `pooled` float32 (texts, WIDTH), the mean of `hidden` over the tokens that the mask shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measure.foreign_networks import IDS, MASK, exported

WORDS, WIDTH, HEADS, BLOCKS, LONGEST = 500, 32, 2, 2, 128
HIDDEN, POOLED = "hidden", "pooled"


def write_encoder(folder: Path) -> Path:
    """Writes the network to `folder` and returns its file."""
    import torch

    torch.manual_seed(0)
    ids, free = torch.ones(2, 16, dtype=torch.int64), {0: "texts", 1: "tokens"}
    path, arguments = folder / "plain.onnx", (ids, torch.ones_like(ids))
    return exported(_network(), arguments, [IDS, MASK], free, path, outputs=[HIDDEN, POOLED])


def _network() -> Any:
    import torch
    from torch import Tensor, nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

        def heads(self, x: Tensor) -> Tensor:
            split: Tensor = x.unflatten(2, (HEADS, -1))  # (B, N, H, D)
            return split.transpose(1, 2)  # (B, H, N, D)

        def forward(self, x: Tensor, bias: Tensor) -> Tensor:
            query, key, value = (self.heads(layer(x)) for layer in (self.query, self.key, self.value))
            weights = torch.softmax(query @ key.transpose(2, 3) * (WIDTH / HEADS) ** -0.5 + bias, -1)
            x = self.norms[0](x + self.out((weights @ value).transpose(1, 2).flatten(2)))
            out: Tensor = self.norms[1](x + self.down(nn.functional.gelu(self.up(x))))
            return out

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
            x = self.words(input_ids) + self.positions(torch.arange(input_ids.shape[1]))  # (B, N, C)
            shown = attention_mask.to(x.dtype)
            bias = (1 - shown[:, None, None, :]) * torch.finfo(x.dtype).min
            for block in self.blocks:
                x = block(x, bias)
            return x, (x * shown[:, :, None]).sum(1) / shown.sum(1, keepdim=True).clamp(min=1)

    return Encoder()
