"""The rules by which a published claim holds.

In: a study's JSON content. Out: our figure in words and the verdict; a function's docstring is its rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, Literal

Result = Mapping[str, Any]
Verdict = Literal["does not hold", "holds in part", "not tested here", "holds"]
LEVEL = 0.05  # closer times or ratios are equal: noise of a shared machine
POINTS = 1.0  # closer accuracies are equal: noise of a single seed
NAMES = {"vit": "ViT", "vitbnffn": "ViTBNFFN", "vitbn": "ViTBN"}


@dataclass(frozen=True)
class Finding:
    ours: str
    verdict: Verdict


def _series(result: Result, model: str, depth: int, lr: float) -> list[list[Mapping[str, float]]]:
    """Of all seeds."""
    key = (model, depth, lr)
    runs = [
        list(run["series"])
        for run in result["runs"]
        if (run["config"]["model"], run["config"]["depth"], run["options"]["lr"]) == key
    ]
    if not runs:
        raise KeyError(f"{model}, depth {depth}, rate {lr}")
    return runs


def _last_percent(result: Result, model: str, depth: int, lr: float) -> list[float]:
    """By seed; 10 % for a run that diverged in its first epoch."""
    every = _series(result, model, depth, lr)
    return [100 * series[-1]["test_accuracy"] if series else 10.0 for series in every]


def _mean_percent(result: Result, model: str, depth: int, lr: float) -> float:
    """The mean over epochs and seeds; else as `_last_percent`."""
    every = (series or [{"test_accuracy": 0.1}] for series in _series(result, model, depth, lr))
    return 100 * mean(epoch["test_accuracy"] for series in every for epoch in series)


def _with_range(percents: Sequence[float]) -> str:
    several = f" ({min(percents):.1f} to {max(percents):.1f})" if len(percents) > 1 else ""
    return f"{mean(percents):.1f} %{several}"


def _derived(result: Result, model: str, configuration: str) -> Mapping[str, Any]:
    return next(
        row for row in result["derived"] if row["model"] == model and row["configuration"].startswith(configuration)
    )


def inference(result: Result) -> Finding:
    """Holds if both models save at least half of the time at equal depth; in part above LEVEL."""
    equal = {model: _derived(result, model, "equal depth")["g_v"] for model in ("vitbn", "vitbnffn")}
    published = {model: _derived(result, model, "published")["g_v"] for model in equal}
    ours = "; ".join(
        f"{what}: " + ", ".join(f"{NAMES[model]} {100 * saved:.0f} %" for model, saved in rows.items())
        for what, rows in (("equal depth, 6 blocks each", equal), ("ViT 6 blocks, the others one", published))
    )
    for row in result["derived"]:
        if row["configuration"].startswith("control"):
            ours += f"; ViT of one block against ViT of 6: {100 * row['g_v']:.0f} %"
    least = min(equal.values())
    return Finding(ours, "holds" if least >= 0.5 else "holds in part" if least > LEVEL else "does not hold")


def training_ratio(model: str) -> Callable[[Result], Finding]:
    def judge(result: Result) -> Finding:
        """Holds if the smallest ratio over the rates is at least 2; in part above 1 + LEVEL."""
        equal, published = (_derived(result, model, name) for name in ("equal depth", "published"))
        (low, high), (one_low, one_high) = equal["r_t_range"], published["r_t_range"]
        ours = f"{low:.2f} to {high:.2f} at equal depth; {one_low:.1f} to {one_high:.1f} where it has one block of 6"
        return Finding(ours, "holds" if low >= 2 else "holds in part" if low > 1 + LEVEL else "does not hold")

    return judge


def high_rate(result: Result) -> Finding:
    """Holds if both BatchNorm models pass 97 % and ViT ends 10 points below; in part if both end POINTS above ViT."""
    vit, *others = (mean(_last_percent(result, model, 6, 0.01)) for model in NAMES)
    ours = ", ".join(f"{name} {_with_range(_last_percent(result, model, 6, 0.01))}" for model, name in NAMES.items())
    shallow = [run["config"]["model"] for run in result["runs"] if run["config"]["depth"] == 1]
    one_block = ", ".join(
        f"{name} {_with_range(_last_percent(result, model, 1, 0.01))}"
        for model, name in NAMES.items()
        if model in shallow
    )
    if min(others) > 97 and vit < min(others) - 10:
        verdict: Verdict = "holds"
    else:
        verdict = "holds in part" if min(others) > vit + POINTS else "does not hold"
    return Finding(f"6 blocks each: {ours}; one block: {one_block}", verdict)


def low_rate(result: Result) -> Finding:
    """Holds if ViT's mean accuracy over epochs and seeds is POINTS above both others; in part above one."""
    means = {model: _mean_percent(result, model, 6, 0.0005) for model in NAMES}
    ours = ", ".join(f"{NAMES[model]} {percent:.1f} %" for model, percent in means.items())
    ahead = sum(means["vit"] > means[model] + POINTS for model in means if model != "vit")
    return Finding(
        f"mean test accuracy over the epochs, 6 blocks each: {ours}",
        "holds" if ahead == 2 else "holds in part" if ahead else "does not hold",
    )


def time_by_rate(result: Result) -> Finding:
    """Holds if the slowest rate takes 20 % more than the quickest for every model; in part for some."""
    spreads = {}
    for model in NAMES:
        medians = [
            median(epoch["training_time_s"] for series in _series(result, model, 6, lr) for epoch in series)
            for lr in (0.0005, 0.005, 0.01)
        ]
        spreads[model] = max(medians) / min(medians)
    ours = ", ".join(f"{NAMES[model]} {100 * (spread - 1):.0f} %" for model, spread in spreads.items())
    large = sum(spread > 1.2 for spread in spreads.values())
    return Finding(
        f"slowest rate over quickest, an epoch at 6 blocks: {ours} more",
        "holds" if large == len(spreads) else "holds in part" if large else "does not hold",
    )


def _pairs(result: Result, lr: float) -> list[tuple[int, float, float]]:
    """Depth, last accuracy % of ViT and of ViTBNFFN, means of the seeds."""
    depths = sorted({run["config"]["depth"] for run in result["runs"] if run["options"]["lr"] == lr})
    return [
        (depth, *(mean(_last_percent(result, model, depth, lr)) for model in ("vit", "vitbnffn"))) for depth in depths
    ]


def _in_words(result: Result, lr: float, pairs: Sequence[tuple[int, float, float]]) -> str:
    def percent(model: str, depth: int) -> str:
        return f"{NAMES[model]} {_with_range(_last_percent(result, model, depth, lr))}"

    ours = "; ".join(f"depth {depth}: {percent('vit', depth)}, {percent('vitbnffn', depth)}" for depth, _, _ in pairs)
    return f"distorted test images, {ours}"


def critical_depth(result: Result) -> Finding:
    """Holds if ViT falls by 5 points from its best depth to the deepest and ViTBNFFN does not; in part if it falls
    less.
    """
    pairs = _pairs(result, 0.005)
    falls = [max(pair[i] for pair in pairs) - pairs[-1][i] for i in (1, 2)]
    if falls[0] >= 5 > falls[1]:
        verdict: Verdict = "holds"
    else:
        verdict = "holds in part" if falls[1] < falls[0] else "does not hold"
    return Finding(f"{_in_words(result, 0.005, pairs)}{'; both fall' if min(falls) >= 5 else ''}", verdict)


def deep_at_0003(result: Result) -> Finding:
    """Holds if ViTBNFFN is 5 points above ViT at every depth from 6 on; in part if POINTS above."""
    pairs = [pair for pair in _pairs(result, 0.003) if pair[0] >= 6]
    leads = [other - vit for _, vit, other in pairs]
    return Finding(
        _in_words(result, 0.003, pairs),
        "holds" if min(leads) >= 5 else "holds in part" if min(leads) > POINTS else "does not hold",
    )


def stable_when_deep(result: Result) -> Finding:
    """Of one rate: holds if ViTBNFFN ends POINTS above ViT at every depth; in part at more than half."""
    (lr,) = {run["options"]["lr"] for run in result["runs"]}
    pairs = _pairs(result, lr)
    ahead = sum(other > vit + POINTS for _, vit, other in pairs)
    return Finding(
        f"rate {lr:g}, distorted test images, {POINTS:g} point or more above ViT at {ahead} of {len(pairs)} depths",
        "holds" if ahead == len(pairs) else "holds in part" if 2 * ahead > len(pairs) else "does not hold",
    )


def faster_when_deep(result: Result) -> Finding:
    """Holds if ViTBNFFN's mean accuracy over epochs and seeds is POINTS above ViT's at every depth from 5 on; in part
    at some.
    """
    leads = {}
    for depth in (depth for depth, _, _ in _pairs(result, 0.003) if depth >= 5):
        vit, other = (_mean_percent(result, model, depth, 0.003) for model in ("vit", "vitbnffn"))
        leads[depth] = other - vit
    ours = ", ".join(f"depth {depth}: {lead:+.1f} points" for depth, lead in leads.items())
    ahead = sum(lead > POINTS for lead in leads.values())
    return Finding(
        f"distorted test images, mean over the epochs against ViT, rate 0.003: {ours}",
        "holds" if ahead == len(leads) else "holds in part" if ahead else "does not hold",
    )


def sigmoids(result: Result) -> Finding:
    """Holds if BatchNorm leads by POINTS after the first epoch at 0.01 and by 10 at the end at 0.1; in part at one."""
    diverged = [{"test_accuracy": 0.1}]  # in its first epoch
    series = {(run["config"]["model"], run["options"]["lr"]): run["series"] or diverged for run in result["runs"]}
    first, last = ({key: 100 * epochs[place]["test_accuracy"] for key, epochs in series.items()} for place in (0, -1))
    distorted = all(run["options"]["augment_test"] for run in result["runs"])
    ours = (
        f"{'distorted' if distorted else 'plain'} test images, "
        f"rate 0.01, first epoch: {first['dnnbn', 0.01]:.1f} % with, {first['dnn', 0.01]:.1f} % without; "
        f"rate 0.1, last epoch: {last['dnnbn', 0.1]:.1f} % with, {last['dnn', 0.1]:.1f} % without"
    )
    ahead = (first["dnnbn", 0.01] > first["dnn", 0.01] + POINTS) + (last["dnnbn", 0.1] > last["dnn", 0.1] + 10)
    return Finding(ours, "holds" if ahead == 2 else "holds in part" if ahead else "does not hold")


def emnist(result: Result) -> Finding:
    """Holds if every network reads over 90 %; in part if some do."""
    measured = {row["name"]: row["sets"].get("emnist-digits") for row in result["derived"]}
    percents = {name: 100 * its["accuracy"] for name, its in measured.items() if its}
    if not percents:
        return Finding("EMNIST's files were missing", "not tested here")
    accuracies = ", ".join(f"{name} {percent:.1f} %" for name, percent in percents.items())
    able = sum(percent > 90 for percent in percents.values())
    return Finding(accuracies, "holds" if able == len(percents) else "holds in part" if able else "does not hold")
