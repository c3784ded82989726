import numpy as np
import pytest
from tune_runs import SEARCH, pixels

from benchmarks.studies.search import Trial
from benchmarks.studies.search_plots import convergence, plane

pytestmark = pytest.mark.slow  # Ax takes seconds to import
BLUE, ORANGE, RED = (0, 114, 178), (230, 159, 0), (213, 94, 0)  # trial, best so far, failure


def amount(png, colour):
    return int((np.abs(pixels(png).astype(int) - colour).max(axis=1) < 12).sum())


def trials_for_plots(accuracies):
    return [
        Trial({"lr": 10 ** (-2 - i / 2), "batch_size": 20 + 15 * i}, accuracy, 1.0, None if accuracy else "nan")
        for i, accuracy in enumerate(accuracies)
    ]


def test_the_convergence_plot_shows_trials_the_best_and_failures():
    finished = convergence(SEARCH, trials_for_plots([0.2, 0.8, 0.7, 0.9, 0.95, 0.94]))
    one_failed = convergence(SEARCH, trials_for_plots([0.2, None, 0.7, 0.9, 0.95, 0.94]))
    assert min(amount(finished, BLUE), amount(finished, ORANGE)) > 500
    assert len(np.unique(pixels(finished), axis=0)) > 20
    assert amount(finished, RED) == 0
    assert amount(one_failed, RED) > 20
    assert convergence(SEARCH, trials_for_plots([1.0])), "a search without a mistake"


def test_the_plane_shows_the_best_where_it_is():
    first = plane(SEARCH, trials_for_plots([0.95, 0.2, 0.3]))
    last = plane(SEARCH, trials_for_plots([0.2, 0.3, 0.95]))
    for png in (first, last):
        assert amount(png, RED) > 100
    red = [np.flatnonzero(np.abs(pixels(png).astype(int) - RED).max(axis=1) < 12) for png in (first, last)]
    assert not np.array_equal(*red)
    assert plane(SEARCH, trials_for_plots([1.0]))
