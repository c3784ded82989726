"""The plots of a search, as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.reporting.plotting import look_of, plain_ticks, png, row_of_panels, whole_numbers
from benchmarks.studies.search import FIRST_TRIALS, Search, Trial, best, front

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_INCHES = (7.0, 4.4)
ERROR = "held-out images wrong (%)"
TRIAL, BEST, FAILED = "#0072B2", "#E69F00", "#D55E00"


def convergence(search: Search, trials: Sequence[Trial]) -> bytes:
    """Error against the number of the trial, with the least error so far."""
    figure, axes = _figure(search, "error of each trial", "trial", ERROR)
    finished, errors_percent, failed = _errors_and_failures(search, trials)
    lowest = [min(errors_percent[: count + 1]) for count in range(len(errors_percent))]
    if len(trials) > FIRST_TRIALS:
        axes.axvspan(0.5, FIRST_TRIALS + 0.5, color="#eeeeee", zorder=0, label="first trials, spread")
    axes.step(
        [*finished, len(trials)], [*lowest, lowest[-1]], where="post", color=BEST, linewidth=1.6, label="best so far"
    )
    axes.plot(finished, errors_percent, "o", color=TRIAL, label="trial")
    if failed:
        edge = axes.get_xaxis_transform()
        axes.plot(failed, [1.0] * len(failed), "x", color=FAILED, transform=edge, clip_on=False, label="failed trial")
    axes.set_xlim(0.5, len(trials) + 0.5)
    whole_numbers(axes)
    plain_ticks(axes)
    return _png_with_legend(figure, axes)


def plane(search: Search, trials: Sequence[Trial]) -> bytes:
    """Each trial at its learning rate and batch size, coloured by its error."""
    figure, axes = _figure(search, "where the error is low", "learning rate", "batch size (images)")
    finished, errors_percent, failed = _errors_and_failures(search, trials)
    points = [(trial.parameters["lr"], trial.parameters["batch_size"]) for trial in trials]
    lrs, batch_sizes = zip(*[points[number - 1] for number in finished], strict=True)
    colours = axes.scatter(lrs, batch_sizes, c=errors_percent, norm="log", cmap="viridis_r", s=60, label="trial")
    winner = best(trials).parameters
    axes.plot(winner["lr"], winner["batch_size"], "o", ms=14, mfc="none", mec=FAILED, mew=1.5, label="best")
    for number in failed:
        label = "failed trial" if number == failed[0] else None
        axes.plot(*points[number - 1], "x", color=FAILED, label=label)
    (low, high), (small, large) = (map(float, search.space[name].values) for name in ("lr", "batch_size"))
    margin = 0.05 * (large - small)
    axes.set(xscale="log", xlim=(low / 1.4, high * 1.4), ylim=(small - margin, large + margin))
    plain_ticks(figure.colorbar(colours, label=ERROR).ax)
    return _png_with_legend(figure, axes)


def frontier(search: Search, trials: Sequence[Trial]) -> bytes:
    """Error against speed; a line joins the trials that no other trial beats in both."""
    figure, axes = _figure(search, "error and measured speed", "images a second, rewritten, in the best way", ERROR)
    finished = [trial for trial in trials if trial.error is None]
    for shown, line, colour, label in ((finished, "none", TRIAL, "trial"), (front(trials), "-", BEST, "frontier")):
        errors_percent = [_error_percent(search, trial.accuracy or 0.0) for trial in shown]
        speeds = [trial.images_per_s or 0.0 for trial in shown]
        axes.plot(speeds, errors_percent, marker="o", linestyle=line, color=colour, label=label)
    plain_ticks(axes, horizontal=True)
    plain_ticks(axes)
    return _png_with_legend(figure, axes)


def _figure(search: Search, subject: str, x: str, y: str) -> tuple[Figure, Axes]:
    """A figure with one panel, whose title and footnote describe the search. `x` and `y`: labels with units."""
    low, high = search.space["depth"].values
    depth = "" if search.model == "cnn" else f", depth {low}" if low == high else f", depth {low} to {high}"
    footnote = (
        f"{search.train_images:,} training images of {search.dataset}, {search.held_out_images:,} held out; "
        f"epochs a trial: {search.epochs}; seed {search.seed}"
    )
    title = f"{look_of(search.model).name}{depth}: {subject}"
    figure, (axes,) = row_of_panels(title, footnote, [""], x, y, SIZE_INCHES)
    return figure, axes


def _png_with_legend(figure: Figure, axes: Axes) -> bytes:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False)
    return png(figure)


def _errors_and_failures(search: Search, trials: Sequence[Trial]) -> tuple[list[int], list[float], list[int]]:
    """Numbers of the finished trials, their errors in %, and numbers of the failed trials."""
    errors_percent = {
        number: _error_percent(search, trial.accuracy)
        for number, trial in enumerate(trials, 1)
        if trial.accuracy is not None
    }
    failed = [number for number in range(1, len(trials) + 1) if number not in errors_percent]
    return list(errors_percent), list(errors_percent.values()), failed


def _error_percent(search: Search, accuracy: float) -> float:
    """The share of wrong held-out images in %. No mistake counts as half of one: a logarithmic scale has no zero."""
    return 100 * max(1 - accuracy, 0.5 / search.held_out_images)
