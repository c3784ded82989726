"""Times of the published layout: BatchNorm2d on tokens transposed to (B, D, N, 1), beside our rows (B*N, D).

The networks take turns, so other work slows all alike. Source of the layout: `Batch_Norm` in model/vitbn.py of
github.com/anindyahepth/BatchNorm_in_Transformers_CV.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.studies import page
from benchmarks.studies.page import StudyError
from models.config import INPUT_SCALE, ModelName
from models.norms import TokenBatchNorm
from models.registry import build

if TYPE_CHECKING:
    from models.data import Dataset

MODELS: tuple[ModelName, ...] = ("vit", "vitbnffn", "vitbn")
DEPTHS = (6, 1)
BATCH, TEST_BATCH = 100, 5000  # the study's
ROUNDS, STEPS = 7, 5
EPOCH_STEPS = 60_000 // BATCH
TOLERANCE = 1e-4  # of float32 logits: BatchNorm2d sums in another order
TRANSPOSED = "-transposed"


class TransposedBatchNorm(nn.Module):
    """Tokens (B, N, D) -> the values of a TokenBatchNorm, through BatchNorm2d."""

    def __init__(self, rows: TokenBatchNorm) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(rows.features, dtype=rows.norm.weight.dtype)
        self.norm.load_state_dict(rows.norm.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        planes: Tensor = self.norm(x.transpose(1, 2).unsqueeze(-1))  # (B, D, N, 1)
        return planes.squeeze(-1).transpose(1, 2)  # (B, N, D)


def transposed(model: nn.Module) -> nn.Module:
    """A copy whose BatchNorms have the published layout."""
    published = copy.deepcopy(model)
    for parent in list(published.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, TokenBatchNorm):
                setattr(parent, name, TransposedBatchNorm(child))
    return published


def networks(dataset: Dataset) -> dict[tuple[str, int], nn.Module]:
    """By model and depth; a BatchNorm network also in the published layout.

    Raises StudyError if the logits of the layouts differ.
    """
    images = torch.tensor(dataset.train_images[:BATCH]) * INPUT_SCALE
    every: dict[tuple[str, int], nn.Module] = {}
    for depth in DEPTHS:
        for model in MODELS:
            torch.manual_seed(0)
            every[model, depth] = ours = build(dataset.model_config(model, depth), "all")
            if model != "vit":
                every[model + TRANSPOSED, depth] = published = transposed(ours)
                check(f"{model}, depth {depth}", ours, published, images)
    return every


def check(name: str, ours: nn.Module, published: nn.Module, images: Tensor) -> None:
    with torch.no_grad():
        error = float((ours(images) - published(images)).abs().max())  # statistics of the batch, as in training
    if not error <= TOLERANCE:
        raise StudyError(f"{name}: expected logits of both layouts within {TOLERANCE:g}, found {error:.3g}")


def measure(
    dataset: Dataset, on_round: Callable[[int], None], rounds: int = ROUNDS, device: str = "cpu"
) -> list[dict[str, Any]]:
    """A run for each network; its series has the seconds of STEPS training steps and of a test in each round."""
    count = min(TEST_BATCH, len(dataset.test_labels))
    images = (torch.tensor(dataset.train_images[:BATCH]) * INPUT_SCALE).to(device)
    labels = torch.tensor(dataset.train_labels[:BATCH]).to(device)
    test_images = (torch.tensor(dataset.test_images[:count]) * INPUT_SCALE).to(device)
    every = {name: network.to(device) for name, network in networks(dataset).items()}
    runs: list[dict[str, Any]] = [
        {"config": {"model": model, "depth": depth}, "options": {"lr": None, "seed": 0}, "series": []}
        for model, depth in every
    ]
    optimizers = [torch.optim.Adam(network.parameters(), lr=1e-4) for network in every.values()]
    for number in range(rounds + 1):  # the first is not timed
        for network, optimizer, run in zip(every.values(), optimizers, runs, strict=True):
            start = _now_s(device)
            network.train()
            for _ in range(STEPS):
                optimizer.zero_grad(set_to_none=True)
                F.cross_entropy(network(images), labels).backward()
                optimizer.step()
            trained = _now_s(device)
            with torch.inference_mode():
                network.eval()(test_images)
            tested = _now_s(device)
            if number:
                run["series"].append({"training_time_s": trained - start, "test_time_s": tested - trained})
        on_round(number)
    return runs


def _now_s(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def write(folder: Path, runs: list[dict[str, Any]], command: str, device: str = "cpu") -> list[Path]:
    size = f"{len(runs[0]['series'])} rounds of {STEPS} steps of {BATCH} and a test of {TEST_BATCH:,}"
    result = page.result(
        "layout",
        "What does the published layout of BatchNorm cost?",
        command,
        {"size": size, "reduced": ""},
        f"Networks take turns: {size}. All rows of the last block are computed.",
        device,
        runs=runs,
    )
    columns = [("network", None), ("depth", 0), ("training steps, ms", 1), ("epoch, s", 1), ("test, ms", 1)]
    cells = []
    for run in runs:
        steps_s, test_s = (median(each[f"{part}_time_s"] for each in run["series"]) for part in ("training", "test"))
        cells.append([*run["config"].values(), 1000 * steps_s, steps_s / STEPS * EPOCH_STEPS, 1000 * test_s])
    return page.write(folder, result, {"Times, medians of the rounds": page.table(columns, cells)}, {})
