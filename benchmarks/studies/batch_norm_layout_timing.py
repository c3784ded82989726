"""Times two layouts of the tokens for BatchNorm: the published (B, D, N, 1), with BatchNorm2d, and our rows (B*N, D).

The networks take turns, so other work on the machine slows all of them equally. Source of the published layout:
`Batch_Norm` in model/vitbn.py of github.com/anindyahepth/BatchNorm_in_Transformers_CV.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measure.interleaved_timing import Protocol, time_interleaved
from benchmarks.reporting.tables.table import Cells, Table
from benchmarks.studies import study_writer
from benchmarks.studies.study_writer import StudyError
from export import compare_logits
from export.compare_logits import EquivalenceError
from models.networks.config import INPUT_SCALE, ModelName
from models.networks.foldable_norms import TokenBatchNorm
from models.networks.registry import build

if TYPE_CHECKING:
    from models.data import Dataset

MODELS: tuple[ModelName, ...] = ("vit", "vitbnffn", "vitbn")
DEPTHS = (6, 1)
BATCH, TEST_BATCH = 100, 5000  # images, as in the study `learning-rates`
ROUNDS, STEPS = 7, 5  # STEPS: of training in a turn
EPOCH_STEPS = 60_000 // BATCH
TOLERANCE = 1e-4  # of the largest logit: BatchNorm2d sums in another order
TRANSPOSED = "-transposed"  # ends the names of networks with the published layout
LONG_TURNS = Protocol(settle_s=0.0, refill=False, one_state=False)  # a turn takes 0.1 s or more


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
    """A copy of the model whose BatchNorms have the published layout."""
    published = copy.deepcopy(model)
    for parent in list(published.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, TokenBatchNorm):
                setattr(parent, name, TransposedBatchNorm(child))
    return published


def networks(dataset: Dataset) -> dict[tuple[str, int], nn.Module]:
    """Model and depth -> network. BatchNorm networks also have the published layout, with TRANSPOSED after the name.

    Raises StudyError if the logits of the layouts differ.
    """
    images = torch.tensor(dataset.train_images[:BATCH]) * INPUT_SCALE
    built: dict[tuple[str, int], nn.Module] = {}
    for depth in DEPTHS:
        for model in MODELS:
            torch.manual_seed(0)
            built[model, depth] = ours = build(dataset.model_config(model, depth))
            if model != "vit":
                built[model + TRANSPOSED, depth] = published = transposed(ours)
                check(f"{model}, depth {depth}", ours, published, images)
    return built


def check(name: str, ours: nn.Module, published: nn.Module, images: Tensor) -> None:
    """Raises StudyError if the logits of the layouts differ in training mode, that is, with statistics of the batch."""
    with torch.no_grad():
        our_logits, published_logits = (network(images).numpy() for network in (ours, published))
    try:
        compare_logits.check(f"{name}, both layouts", our_logits, published_logits, TOLERANCE)
    except EquivalenceError as error:
        raise StudyError(str(error)) from error


def measure(dataset: Dataset, rounds: int = ROUNDS, device: str = "cpu") -> list[dict[str, Any]]:
    """A run for each network. Its series holds for each round the seconds of STEPS training steps and of a test."""
    count = min(TEST_BATCH, len(dataset.test_labels))
    images = (torch.tensor(dataset.train_images[:BATCH]) * INPUT_SCALE).to(device)
    labels = torch.tensor(dataset.train_labels[:BATCH]).to(device)
    test_images = (torch.tensor(dataset.test_images[:count]) * INPUT_SCALE).to(device)
    turns: dict[str, Callable[[], None]] = {}
    compared = networks(dataset)
    for (model, depth), network in compared.items():
        optimizer = torch.optim.Adam(network.to(device).parameters(), lr=1e-4)
        turns[f"{model} {depth} training"] = partial(_train, network, optimizer, images, labels)
        turns[f"{model} {depth} test"] = partial(_test, network, test_images)
    measured = time_interleaved(turns, 0, "layout", rounds, protocol=LONG_TURNS)
    return [
        {
            "config": {"model": model, "depth": depth},
            "options": {"lr": None, "seed": 0},
            "series": [
                {"training_time_s": training / 1e9, "test_time_s": test / 1e9}
                for training, test in zip(
                    *(measured[f"{model} {depth} {part}"].samples_ns for part in ("training", "test")), strict=True
                )
            ],
        }
        for model, depth in compared
    ]


def _train(network: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
    network.train()
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
    _wait(images)


def _test(network: nn.Module, images: Tensor) -> None:
    with torch.inference_mode():
        network.eval()(images)
    _wait(images)


def _wait(images: Tensor) -> None:
    """Waits for the device of the images: a call on a GPU returns before its work is done."""
    if images.is_cuda:
        torch.cuda.synchronize()


def write(folder: Path, runs: list[dict[str, Any]], command: str, device: str = "cpu") -> list[Path]:
    """Writes the study's JSON file and page, and returns their paths. `runs`: as `measure` returns them."""
    size = f"{len(runs[0]['series'])} rounds of {STEPS} steps of {BATCH} and a test of {TEST_BATCH:,}"
    result = study_writer.result(
        "layout",
        "What does the published layout of BatchNorm cost?",
        command,
        {"size": size, "reduced": ""},
        f"Networks take turns: {size}. All rows of the last block are computed.",
        device,
        runs=runs,
    )
    rows: list[Cells] = []
    for run in runs:
        steps_s, test_s = (median(times[f"{part}_time_s"] for times in run["series"]) for part in ("training", "test"))
        cells = {"network": run["config"]["model"], "depth": str(run["config"]["depth"])}
        cells |= {"training steps, ms": f"{1000 * steps_s:,.1f}", "epoch, s": f"{steps_s / STEPS * EPOCH_STEPS:,.1f}"}
        rows.append(cells | {"test, ms": f"{1000 * test_s:,.1f}"})
    return study_writer.write(folder, result, {"Times, medians of the rounds": Table(rows)}, {})
