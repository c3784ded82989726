"""Studies that train nothing: checkpoints of MNIST on other digits.

In: checkpoints. Out: a JSON with a row a checkpoint, and a table and a picture of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from models.plots.figures import accuracy_axis, row_of_panels
from models.studies import page
from models.studies.page import TIMING, Result, StudyError

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from models.checkpoint import Checkpoint

Images = tuple["NDArray[np.uint8]", "NDArray[np.int64]"]
"""Images (n, 1, 28, 28) and labels (n,)."""
Rows = list[dict[str, Any]]

SETS = {"mnist": "MNIST", "emnist-digits": "EMNIST digits", "digits": "scikit-learn digits"}
ROUNDS, BATCH = 3, 100
QUICK_IMAGES = 1000
UNLABELLED = 200
MNIST_IMAGES = 2000
ADAPTED = {
    "mnist": "MNIST %",
    "coarse": "MNIST through 8x8 %",
    "coarse_adapted": "adapted %",
    "digits": "scikit-learn digits %",
    "digits_adapted": "adapted %",
    "digits_mean": "mean alone %",
    "digits_variance": "variance alone %",
}


def trained_on_mnist(folder: Path) -> list[Checkpoint]:
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
    from models.data import DataError, find_idx, load_idx_part

    try:
        place = find_idx("emnist-digits", folder)
    except DataError:
        return None
    if not place.is_dir():
        raise StudyError(f"{place}: expected a folder with the idx files of EMNIST's digits, found none")
    return load_idx_part("emnist-digits", place, "test") if any(place.glob("emnist-digits-test-*")) else None


def all_digits() -> Images:
    """All 1,797 of scikit-learn: no network trained on them."""
    import numpy as np

    from models.data import load_digits

    digits = load_digits()
    images = np.concatenate((digits.train_images, digits.test_images))
    return images, np.concatenate((digits.train_labels, digits.test_labels))


def image_sets(mnist: Images, emnist: Images | None, quick: bool) -> dict[str, Images]:
    sets = {"mnist": mnist, **({"emnist-digits": emnist} if emnist else {}), "digits": all_digits()}
    return {name: (x[:QUICK_IMAGES], y[:QUICK_IMAGES]) if quick else (x, y) for name, (x, y) in sets.items()}


def shift(
    networks: Sequence[Checkpoint],
    sets: Mapping[str, Images],
    device: str,
    on_round: Callable[[str, int], None],
) -> Rows:
    """Accuracy and time on each set, in interleaved rounds."""
    import torch

    from models.evaluation import measure_accuracy

    rows = [
        _described(network)
        | {"depth": network.config.depth if network.config.is_transformer else None}
        | {"sets": {name: {"images": len(labels), "times_s": []} for name, (_, labels) in sets.items()}}
        for network in networks
    ]
    for network in networks:
        network.model.to(device)
    for name, (pixels, targets) in sets.items():
        images, labels = torch.tensor(pixels, device=device), torch.tensor(targets, device=device)
        for number in range(1, ROUNDS + 1):
            for row, network in zip(rows, networks, strict=True):
                start = time.perf_counter()
                row["sets"][name]["accuracy"] = measure_accuracy(network.model, images, labels, None, BATCH)
                row["sets"][name]["times_s"].append(time.perf_counter() - start)
            on_round(name, number)
    return rows


def adaptation(networks: Sequence[Checkpoint], mnist: Images, images: int = MNIST_IMAGES) -> Iterator[dict[str, Any]]:
    """Accuracy on coarse digits, before and after `models.adaptation` to UNLABELLED images."""
    import numpy as np
    import torch

    from models.adaptation import BOTH, AdaptationError, Statistic, adapt, last_block_of_training
    from models.data.digits import as_coarse
    from models.evaluation import measure_accuracy

    if len(mnist[1]) <= UNLABELLED:
        raise StudyError(f"mnist: expected more than {UNLABELLED} test images, found {len(mnist[1])}")
    plain, labels = mnist[0][:images], torch.tensor(mnist[1][:images])
    x, y = map(torch.tensor, all_digits())
    coarse = torch.tensor(np.stack([as_coarse(image) for image in plain]))
    sets = {"mnist": (torch.tensor(plain), labels), "coarse": (coarse, labels), "digits": (x, y)}
    ways: dict[str, tuple[Statistic, ...]] = {"adapted": BOTH, "mean": ("mean",), "variance": ("variance",)}
    for network in networks:
        row = dict.fromkeys(ADAPTED) | _described(network)
        row |= {name: measure_accuracy(network.model, a[UNLABELLED:], b[UNLABELLED:]) for name, (a, b) in sets.items()}
        for name, (pixels, targets) in sets.items():
            for way, statistics in ways.items():
                if f"{name}_{way}" in ADAPTED:
                    last_block = last_block_of_training(network.metrics)
                    try:
                        adapted = adapt(network.model, pixels[:UNLABELLED], statistics, last_block)
                    except AdaptationError:
                        continue
                    row[f"{name}_{way}"] = measure_accuracy(adapted, pixels[UNLABELLED:], targets[UNLABELLED:])
        yield row


def _described(network: Checkpoint) -> dict[str, Any]:
    teacher = network.metrics.get("options", {}).get("teacher")
    return {"name": network.path.stem, "model": network.config.model, "teacher": teacher}


def write_shift(folder: Path, rows: Rows, quick: bool, command: str, device: str) -> list[Path]:
    """Networks that learned from a teacher apart."""
    images = {name: measured["images"] for name, measured in rows[0]["sets"].items()}
    reduced = f"{QUICK_IMAGES:,} images of each set" if quick else ""
    result = page.result(
        "shift",
        "What is left of the accuracy on digits of other people, and what does it cost in time?",
        command,
        {"images": images, "test_batch": BATCH, "rounds": ROUNDS, "reduced": reduced},
        f"{TIMING} Times are medians of {ROUNDS} interleaved rounds with {BATCH} images a batch.",
        device,
        rows=rows,
    )
    timed = "emnist-digits" if "emnist-digits" in rows[0]["sets"] else "mnist"
    cnn_ms = next((_ms_per_1000(row, timed) for row in rows if row["model"] == "cnn"), None)
    columns = [
        *(("checkpoint", None), ("model", None), ("depth", 0)),
        *((f"{name} %", 2) for name in SETS.values()),
        (f"ms per 1,000 images of {SETS[timed]}", 1),
        ("times the CNN's", 2),
    ]
    tables = []
    for how, taught in (("trained without a teacher", False), ("that learned from a teacher", True)):
        cells = [
            [
                *(row["name"], row["model"], row["depth"]),
                *(_percent(row["sets"].get(name, {}).get("accuracy")) for name in SETS),
                _ms_per_1000(row, timed),
                _ms_per_1000(row, timed) / cnn_ms if cnn_ms else None,
            ]
            for row in rows
            if bool(row["teacher"]) == taught
        ]
        title = f"Networks {how}: accuracy after MNIST, and time with all rows of the last block, before any rewrite"
        tables += [page.Table(title, columns, cells)] if cells else []
    missing = [name for name in SETS if name not in rows[0]["sets"]]
    notes = [f"{SETS[name]}: not measured: no EMNIST files in --emnist-dir or EMNIST_DIR." for name in missing]
    dots = {
        f"{SETS[name]}, {count:,} images": [_percent(row["sets"][name]["accuracy"]) for row in rows]
        for name, count in images.items()
    }
    drawn = _dots(result, "Trained on MNIST, asked about other people's digits", "images right (%)", dots)
    return page.write(folder, result, tables, {"accuracy": drawn}, notes)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _ms_per_1000(row: Mapping[str, Any], name: str) -> float:
    measured = row["sets"][name]
    return float(1e6 * median(measured["times_s"]) / measured["images"])


def write_adaptation(folder: Path, rows: Rows, command: str) -> list[Path]:
    result = page.result(
        "adaptation",
        "Why do coarse digits cost a BatchNorm network more, and what do statistics of the new source give back?",
        command,
        {"unlabelled": UNLABELLED, "mnist_images": MNIST_IMAGES, "reduced": ""},
        f"No times. MNIST: the first {MNIST_IMAGES:,} test images; the first {UNLABELLED} adapt only.",
        "cpu",
        rows=rows,
    )
    columns = [("checkpoint", None), ("model", None), ("teacher", None), *((name, 2) for name in ADAPTED.values())]
    cells = [
        [row["name"], row["model"], "yes" if row["teacher"] else "no", *(_percent(row[key]) for key in ADAPTED)]
        for row in rows
    ]
    title = f"Networks trained on MNIST; adapted: BatchNorm's statistics from {UNLABELLED} unlabelled images"
    note = (
        "Networks that learned from a teacher compare with each other alone. Statistics of the last block are those of "
        "the rows that training computed; accuracy is the same in both."
    )
    dots = {
        label: [_percent(row[key]) for row in rows]
        for key, label in (("digits", "as trained"), ("digits_adapted", "adapted"))
    }
    about = f"Coarse digits, before and after {UNLABELLED} unlabelled images"
    drawn = _dots(result, about, "scikit-learn digits right (%)", dots)
    return page.write(folder, result, [page.Table(title, columns, cells)], {"accuracy": drawn}, [note])


def _dots(result: Result, title: str, x: str, dots: Mapping[str, Sequence[float | None]]) -> Figure:
    """A line a network, a mark a label; None leaves it out."""
    rows = result["rows"]
    figure, (axes,) = row_of_panels(title, page.footnote(result), [""], x, "", (8.0, 1.8 + 0.45 * len(rows)))
    looks = (("o", "#000000"), ("D", "#ffffff"), ("s", "#56B4E9"))
    for (label, percents), (marker, face) in zip(dots.items(), looks, strict=False):
        shown = [(end, place) for place, end in enumerate(percents) if end is not None]
        if shown:
            xs, ys = zip(*shown, strict=True)
            axes.plot(xs, ys, marker, color="#000000", mfc=face, ms=8, ls="none", label=label)
    axes.set_yticks(range(len(rows)), [f"{row['name']}{', teacher' if row['teacher'] else ''}" for row in rows])
    axes.invert_yaxis()
    accuracy_axis(axes, horizontal=True)
    axes.margins(x=0.08, y=0.12)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=3, fontsize=9)
    return figure
