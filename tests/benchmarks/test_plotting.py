import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.reporting import plotting
from benchmarks.studies import study_report

STUDIES = Path(__file__).resolve().parents[2] / "benchmarks/results/studies"


def test_models_are_told_apart_without_colour():
    together = ("vit", "vitbnffn", "vitbn", "cnn")
    assert len({plotting.look_of(model).marker for model in together}) == len(together)
    assert len({str(plotting.look_of(model).dash) for model in together}) == len(together)
    assert len({plotting.look_of(model).colour for model in together}) == len(together)


def test_accuracy_axis_is_spread_towards_100():
    _, (axes,) = plotting.row_of_panels("", "", [""], "", "")
    axes.plot([0, 1], [50, 99.7])
    plotting.accuracy_axis(axes)
    ticks = axes.get_yticks()
    places = axes.transData.transform([(0, percent) for percent in ticks])[:, 1]
    assert {90, 99} <= set(ticks)
    assert len(ticks) >= 5
    assert np.abs(np.diff(places)).min() > 10  # pixels


@pytest.mark.parametrize("percent", [(97.99, 98.2), (99.31, 99.34), (10, 99.9), (50, 51)])
def test_a_narrow_accuracy_axis_has_three_ticks(percent):
    _, (axes,) = plotting.row_of_panels("", "", [""], "", "")
    axes.plot([0, 1], percent)
    plotting.accuracy_axis(axes)
    assert min(visible_ticks(axes)) >= 3


@pytest.mark.parametrize("seconds", [(1.05, 1.9), (0.31, 0.32), (0.001, 1000)])
@pytest.mark.parametrize("horizontal", [False, True])
def test_a_narrow_logarithmic_axis_has_three_ticks(seconds, horizontal):
    _, (axes,) = plotting.row_of_panels("", "", [""], "", "")
    axes.plot(*([seconds, [0, 1]] if horizontal else [[0, 1], seconds]))
    plotting.plain_ticks(axes, horizontal)
    assert min(visible_ticks(axes)) >= 3


def visible_ticks(axes):
    limits = ((axes.xaxis, sorted(axes.get_xlim())), (axes.yaxis, sorted(axes.get_ylim())))
    return [sum(low <= tick <= high for tick in axis.get_majorticklocs()) for axis, (low, high) in limits]


@pytest.mark.parametrize("name", ["depths", "designed", "dnn", "learning-rates", "norms", "optimised", "six-blocks"])
def test_every_committed_picture_has_three_ticks_an_axis(name):
    results = [json.loads(path.read_bytes()) for path in STUDIES.glob(f"*/{name}.json")]
    committed = [result for result in results if result["scope"]["epochs"] > 2]  # the axis of two epochs has two ticks
    assert committed
    for result in committed:
        for shown, picture in study_report.pictures(result).items():
            assert all(min(visible_ticks(axes)) >= 3 for axes in picture.draw().axes), (result["study"], shown)
