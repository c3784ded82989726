"""The pictures of docs/claims.md as data: the published ends beside our curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from benchmarks.reporting.plotting import Line, Picture, line, look_of
from benchmarks.studies.claims_tables import (
    FULL_DEPTHS,
    MODELS,
    PAIR,
    RATES,
    SEARCHED,
    SHORT_DEPTHS,
    SHORT_RUN,
    blocks_of,
    garments_study,
    six_blocks_against_one,
    six_blocks_each,
)
from benchmarks.studies.results import Key, Results, by_epoch, last_accuracies, time_s
from models.networks.config import ModelName


def curve(results: Results, key: Key, figure: str = "test_accuracy", label: str = "", hollow: bool = False) -> Line:
    """A network's line by epoch: the mean of its seeds, and their range. `figure`: a field of an epoch."""
    factor = 100 if figure == "test_accuracy" else 1
    columns = by_epoch(results.seeds(key), figure, factor)
    return line(cast(ModelName, key[1]), range(1, len(columns) + 1), columns, label, hollow)


def rate_picture(rate: float, *published: float) -> Callable[[Results], Picture]:
    """A function that makes the picture of a learning rate. `published`: the last accuracies of MODELS, in %."""

    def picture(results: Results) -> Picture:
        left, right = six_blocks_each(rate), six_blocks_against_one(rate)
        panels = {
            name: [
                curve(results, key, label=f"{look_of(model).name}, {blocks_of(key[2] or 6)}", hollow=key[2] == 1)
                for model, key in zip(MODELS, keys, strict=True)
            ]
            for name, keys in (("6 blocks each", left), ("6 blocks against 1, as published", right))
        }
        crosses = [Line(model, [30], [end], published=True) for model, end in zip(MODELS, published, strict=False)]
        panels["6 blocks against 1, as published"] += crosses
        note = f"Left: {results.size(left[-1][0])}. Right: {results.size(right[-1][0])}."
        note += " Crosses: the published end." if crosses else ""
        return Picture(f"Learning rate {rate:g}", note, "epoch", "test images right (%)", "accuracy", panels)

    return picture


def garments_picture(results: Results) -> Picture:
    panels = {
        f"learning rate {rate:g}": [curve(results, (garments_study(rate, 6), model, 6, rate)) for model in MODELS]
        for rate in RATES
    }
    note = "; ".join(dict.fromkeys(results.size(garments_study(rate, 6)) for rate in RATES)) + "; bands: the seeds."
    return Picture("Garments, 6 blocks each", note, "epoch", "test images right (%)", "accuracy", panels)


def sigmoid_picture(results: Results) -> Picture:
    models: dict[ModelName, str] = {"dnn": "without BatchNorm", "dnnbn": "with BatchNorm"}
    panels = {
        f"learning rate {rate:g}": [
            curve(results, ("dnn/dnn", model, None, rate), label=name) for model, name in models.items()
        ]
        for rate in (0.01, 0.1)
    }
    y = "distorted test images right (%)"
    return Picture("Hidden layers with sigmoids", f"{results.size('dnn/dnn')}.", "epoch", y, "from zero", panels)


def depth_picture(results: Results) -> Picture:
    panels: dict[str, list[Line]] = {}
    for rate, published in ((0.003, (91, 92)), (0.005, (78, 90))):
        panel = panels[f"learning rate {rate:g}"] = []
        for model, end in zip(PAIR, published, strict=True):
            short = [results.seeds((f"depths-{rate:g}/depths", model, depth, rate)) for depth in SHORT_DEPTHS]
            panel.append(line(model, SHORT_DEPTHS, [*map(last_accuracies, short)]))
            full = [results.seeds((study, model, depth, rate)) for depth, study in FULL_DEPTHS[rate].items()]
            label = f"{look_of(model).name}, all images"
            panel.append(line(model, [*FULL_DEPTHS[rate]], [*map(last_accuracies, full)], label, hollow=True))
            panel.append(Line(model, [3], [end], published=True))
    note = (
        f"{results.size('depths-0.005/depths')}; bands: the seeds. Hollow: 60,000 images, 1 seed. Crosses: published."
    )
    y = "distorted test images right (%)"
    return Picture("Accuracy by depth", note, "depth (blocks)", y, "from zero", panels)


def loss_picture(results: Results) -> Picture:
    panels = {
        f"depth {depth}": [
            curve(
                results,
                (f"depths-{rate:g}/depths", model, depth, rate),
                "training_loss",
                f"{look_of(model).name}, rate {rate:g}",
                hollow=rate == 0.003,
            )
            for model in PAIR
            for rate in (0.003, 0.005)
        ]
        for depth in (2, 3, 4)
    }
    note = f"{results.size('depths-0.005/depths')}; bands: the seeds."
    return Picture("Training loss at both rates", note, "epoch", "training loss", "from zero", panels)


def searched_picture(results: Results) -> Picture:
    lines = [curve(results, key) for key in SEARCHED]
    note = f"{results.size('optimised/optimised')}."
    y = "distorted test images right (%)"
    return Picture("Searched rate and batch, 6 blocks", note, "epoch", y, "from zero", {"": lines})


def time_picture(results: Results) -> Picture:
    lines = [
        Line(
            model,
            [shift * 1000 * rate for rate in RATES],
            [time_s(results.seeds((SHORT_RUN, model, 6, rate)), "training") for rate in RATES],
        )
        for model, shift in zip(MODELS, (0.94, 1, 1.06), strict=True)
    ]
    x, y = "learning rate (thousandths, logarithmic; the networks stand beside each other)", "training (s an epoch)"
    return Picture(
        "Time by learning rate, 6 blocks", f"{results.size(SHORT_RUN)}.", x, y, "from zero, log x", {"": lines}
    )


PICTURES: dict[str, Callable[[Results], Picture]] = {
    "rate-0.0005": rate_picture(0.0005, 98.2, 97.8, 97.1),
    "rate-0.005": rate_picture(0.005),
    "rate-0.01": rate_picture(0.01),
    "time-by-rate": time_picture,
    "sigmoids": sigmoid_picture,
    "garments": garments_picture,
    "depth": depth_picture,
    "loss": loss_picture,
    "searched": searched_picture,
}
