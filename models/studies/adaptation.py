"""How BatchNorm networks read coarse digits.

In: checkpoints trained on MNIST. Out: accuracy on MNIST, on MNIST made as coarse as scikit-learn's digits (8x8), and on
these digits, before and after `models.adaptation` to 200 unlabelled images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from models.plots.figures import accuracy_axis, row_of_panels
from models.plots.results import Column, Result, footnote, percent, table
from models.studies.running import StudyError

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from models.checkpoint import Checkpoint

NAME = "adaptation"
QUESTION = "Why do coarse digits cost a BatchNorm network more, and what do statistics of the new source give back?"
UNLABELLED = 200
MNIST_IMAGES = 2000
COLUMNS = {
    "mnist": "MNIST %",
    "coarse": "MNIST through 8x8 %",
    "coarse_adapted": "adapted %",
    "digits": "scikit-learn digits %",
    "digits_adapted": "adapted %",
    "digits_mean": "mean alone %",
    "digits_variance": "variance alone %",
}


def measure(
    networks: Sequence[Checkpoint], mnist: tuple[NDArray[np.uint8], NDArray[np.int64]], images: int = MNIST_IMAGES
) -> Iterator[dict[str, Any]]:
    import numpy as np
    import torch

    from models.adaptation import BOTH, AdaptationError, Statistic, adapt, form_of_training
    from models.data import load_digits
    from models.data.digits import as_coarse
    from models.evaluation import measure_accuracy

    if len(mnist[1]) <= UNLABELLED:
        raise StudyError(f"mnist: expected more than {UNLABELLED} test images, found {len(mnist[1])}")
    digits = load_digits()
    x = torch.tensor(np.concatenate((digits.train_images, digits.test_images)))
    y = torch.tensor(np.concatenate((digits.train_labels, digits.test_labels)))
    plain, labels = torch.tensor(mnist[0][:images]), torch.tensor(mnist[1][:images])
    coarse = torch.tensor(np.stack([as_coarse(image) for image in mnist[0][:images]]))
    ways: dict[str, tuple[Statistic, ...]] = {"adapted": BOTH, "mean": ("mean",), "variance": ("variance",)}
    for network in networks:
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row |= {
            "name": network.path.stem,
            "model": network.config.model,
            "teacher": network.metrics.get("options", {}).get("teacher"),
        }
        sets = {"mnist": (plain, labels), "coarse": (coarse, labels), "digits": (x, y)}
        row |= {name: measure_accuracy(network.model, a[UNLABELLED:], b[UNLABELLED:]) for name, (a, b) in sets.items()}
        for name, (pixels, targets) in sets.items():
            for way, statistics in ways.items():
                if f"{name}_{way}" not in COLUMNS:
                    continue
                try:
                    adapted = adapt(network.model, pixels[:UNLABELLED], statistics, form_of_training(network.metrics))
                except AdaptationError:
                    continue
                row[f"{name}_{way}"] = measure_accuracy(adapted, pixels[UNLABELLED:], targets[UNLABELLED:])
        yield row


def result(rows: list[dict[str, Any]], command: str) -> Result:
    import torch

    from models.environment import describe

    columns = [
        Column("checkpoint"),
        Column("model"),
        Column("teacher"),
        *(Column(name, 2) for name in COLUMNS.values()),
    ]
    cells = [
        [row["name"], row["model"], "yes" if row["teacher"] else "no", *(percent(row[key]) for key in COLUMNS)]
        for row in rows
    ]
    title = (
        f"Accuracy of networks trained on MNIST; adapted: BatchNorm's statistics from {UNLABELLED} unlabelled images"
    )
    return {
        "study": NAME,
        "question": QUESTION,
        "command": command,
        "scope": {"unlabelled": UNLABELLED, "mnist_images": MNIST_IMAGES, "reduced": ""},
        "timing": f"No times. MNIST: the first {MNIST_IMAGES:,} test images; the first {UNLABELLED} adapt only.",
        "environment": describe(torch.get_num_threads(), "cpu"),
        "runs": [],
        "derived": rows,
        "tables": [table(title, columns, cells)],
        "notes": [
            "Networks that learned from a teacher compare with each other alone. Statistics are taken in the form in "
            "which a network was trained; accuracy is the same in both."
        ],
    }


def plots(result: Result) -> dict[str, Figure]:
    rows = result["derived"]
    title = f"Coarse digits, before and after {UNLABELLED} unlabelled images"
    size = (8.0, 1.8 + 0.45 * len(rows))
    figure, (axes,) = row_of_panels(title, footnote(result), [""], "scikit-learn digits right (%)", "", size)
    for key, face, label in (("digits", "#ffffff", "as trained"), ("digits_adapted", "#000000", "adapted")):
        shown = [(100 * row[key], place) for place, row in enumerate(rows) if row[key] is not None]
        if not shown:  # no network has BatchNorm
            continue
        xs, ys = zip(*shown, strict=True)
        axes.plot(xs, ys, "o", color="#000000", mfc=face, ms=8, ls="none", label=label)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.invert_yaxis()
    accuracy_axis(axes, horizontal=True)
    axes.margins(x=0.08, y=0.12)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=2, fontsize=9)
    return {"accuracy": figure}
