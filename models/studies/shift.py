"""Accuracy and time on other people's digits, without training.

In: checkpoints trained on MNIST. Out: accuracy and time on the test images of MNIST, of EMNIST's digits if available,
and on all of scikit-learn's digits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from models.plots.figures import accuracy_axis, row_of_panels
from models.plots.results import TIMING, Column, Result, footnote, table
from models.studies.running import StudyError

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from models.checkpoint import Checkpoint

NAME = "shift"
QUESTION = "What is left of the accuracy on digits of other people, and what does it cost in time?"
Images = tuple["NDArray[np.uint8]", "NDArray[np.int64]"]
"""Images (n, 1, 28, 28) and labels (n,)."""

SETS = {"mnist": "MNIST", "emnist-digits": "EMNIST digits", "digits": "scikit-learn digits"}
ROUNDS = 3
QUICK_IMAGES = 1000
BATCH = 100


def checkpoints(folder: Path) -> list[Checkpoint]:
    from models.checkpoint import load

    loaded = [load(path) for path in sorted(folder.glob("*.safetensors"))]
    if not loaded:
        raise StudyError(f"{folder}: expected checkpoints, found none")
    for network in loaded:
        if (trained_on := network.metrics.get("dataset")) != "mnist":
            raise StudyError(f"{network.path}: expected a checkpoint trained on mnist, found {trained_on}")
    return loaded


def emnist_images(folder: Path | None) -> Images | None:
    """None if not available; raises DataError for a damaged file, StudyError for a missing folder."""
    from models.data import DataError, find_emnist, load_emnist_part

    try:
        place = find_emnist(folder)
    except DataError:
        return None
    if not place.is_dir():
        raise StudyError(f"{place}: expected a folder with the idx files of EMNIST's digits, found none")
    return load_emnist_part(place, "test") if any(place.glob("emnist-digits-test-*")) else None


def image_sets(mnist: Images, emnist: Images | None, quick: bool) -> dict[str, Images]:
    """All 1,797 digits of scikit-learn: no network trained on them."""
    import numpy as np

    from models.data import load_digits

    digits = load_digits()
    sets = {
        "mnist": mnist,
        **({"emnist-digits": emnist} if emnist else {}),
        "digits": (
            np.concatenate((digits.train_images, digits.test_images)),
            np.concatenate((digits.train_labels, digits.test_labels)),
        ),
    }
    return {name: (x[:QUICK_IMAGES], y[:QUICK_IMAGES]) if quick else (x, y) for name, (x, y) in sets.items()}


def measure(
    networks: Sequence[Checkpoint], sets: Mapping[str, Images], device: str, on_round: Callable[[str, int], None]
) -> list[dict[str, Any]]:
    import torch

    from models.training import measure_accuracy

    rows: list[dict[str, Any]] = [
        {
            "name": network.path.stem,
            "model": network.config.model,
            "depth": network.config.depth if network.config.is_transformer else None,
            "teacher": network.metrics.get("options", {}).get("teacher"),
            "sets": {},
        }
        for network in networks
    ]
    models = [network.model.to(device) for network in networks]
    for name, (pixels, targets) in sets.items():
        images, labels = torch.tensor(pixels, device=device), torch.tensor(targets, device=device)
        for row in rows:
            row["sets"][name] = {"images": len(targets), "times_s": []}
        for number in range(1, ROUNDS + 1):
            for row, model in zip(rows, models, strict=True):
                start = time.perf_counter()
                accuracy = measure_accuracy(model, images, labels, None, BATCH)
                row["sets"][name]["times_s"].append(time.perf_counter() - start)
                row["sets"][name]["accuracy"] = accuracy
            on_round(name, number)
    return rows


def result(rows: list[dict[str, Any]], quick: bool, command: str, device: str) -> Result:
    import torch

    from models.environment import describe

    missing = [name for name in SETS if name not in rows[0]["sets"]]
    return {
        "study": NAME,
        "question": QUESTION,
        "command": command,
        "quick": quick,
        "scope": {
            "images": {name: measured["images"] for name, measured in rows[0]["sets"].items()},
            "test_batch": BATCH,
            "rounds": ROUNDS,
            "reduced": f"{QUICK_IMAGES:,} images of each set" if quick else "",
        },
        "timing": f"{TIMING} Times are medians of {ROUNDS} interleaved rounds with {BATCH} images a batch.",
        "environment": describe(torch.get_num_threads(), device),
        "runs": [],
        "derived": rows,
        "tables": [
            _table(rows, alike, how)
            for how, alike in (
                ("trained without a teacher", [row for row in rows if not row["teacher"]]),
                ("that learned from a teacher", [row for row in rows if row["teacher"]]),
            )
            if alike
        ],
        "notes": [f"{SETS[name]}: not measured: no EMNIST files in --emnist-dir or EMNIST_DIR." for name in missing],
    }


def _table(rows: Sequence[dict[str, Any]], alike: Sequence[dict[str, Any]], how: str) -> dict[str, Any]:
    timed = "emnist-digits" if "emnist-digits" in rows[0]["sets"] else "mnist"
    cnn_ms = next((_ms_per_1000(row, timed) for row in rows if row["model"] == "cnn"), None)
    columns = [
        Column("checkpoint"),
        Column("model"),
        Column("depth", 0),
        *(Column(f"{name} %", 2) for name in SETS.values()),
        Column(f"ms per 1,000 images of {SETS[timed]}", 1),
        Column("times the CNN's", 2),
    ]
    cells = [
        [
            row["name"],
            row["model"],
            row["depth"],
            *(100 * row["sets"][name]["accuracy"] if name in row["sets"] else None for name in SETS),
            _ms_per_1000(row, timed),
            _ms_per_1000(row, timed) / cnn_ms if cnn_ms else None,
        ]
        for row in alike
    ]
    title = f"Networks {how}: accuracy after MNIST, and time in the plain form, before any rewrite"
    return table(title, columns, cells)


def _ms_per_1000(row: dict[str, Any], name: str) -> float:
    measured = row["sets"][name]
    ms: float = 1e6 * median(measured["times_s"]) / measured["images"]
    return ms


def plots(result: Result) -> dict[str, Figure]:
    rows = sorted(result["derived"], key=lambda row: bool(row.get("teacher")))
    figure, (axes,) = row_of_panels(
        "Trained on MNIST, asked about other people's digits",
        footnote(result),
        [""],
        "images right (%)",
        "",
        (8.0, 1.8 + 0.45 * len(rows)),
    )
    marks = {"mnist": ("o", "#000000"), "emnist-digits": ("s", "#56B4E9"), "digits": ("D", "#ffffff")}
    for name, (marker, face) in marks.items():
        if name in rows[0]["sets"]:
            accuracies = [100 * row["sets"][name]["accuracy"] for row in rows]
            label = f"{SETS[name]}, {result['scope']['images'][name]:,} images"
            axes.plot(accuracies, range(len(rows)), marker, color="#000000", mfc=face, ms=8, ls="none", label=label)
    ends = [sorted(100 * measured["accuracy"] for measured in row["sets"].values()) for row in rows]
    axes.hlines(range(len(rows)), [low for low, *_ in ends], [high for *_, high in ends], color="#bbbbbb", zorder=1)
    taught = [f"{row['name']}{', teacher' if row.get('teacher') else ''}" for row in rows]
    axes.set_yticks(range(len(rows)), taught)
    axes.invert_yaxis()
    accuracy_axis(axes, horizontal=True)
    axes.margins(x=0.08, y=0.12)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=3, fontsize=9)
    return {"accuracy": figure}
