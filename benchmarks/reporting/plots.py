from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.contest.foreign_contestants import OURS
from benchmarks.contest.rewritten import BEST, EAGER, PLAIN
from benchmarks.reporting.page import Picture
from benchmarks.reporting.sources import Result, is_cpu, machine
from models.plots import figures
from models.plots.figures import NAMES, legend, plain_ticks, row_of_panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colour and hatch of an operator's bar, distinguishable in grey.
BARS = (
    ("#0072B2", ""),
    ("#E69F00", "///"),
    ("#009E73", "..."),
    ("#CC79A7", "xxx"),
    ("#56B4E9", ""),
    ("#D55E00", "|||"),
)
OTHERS = ("#dddddd", "")


def picture(name: str, caption: str, figure: Figure) -> Picture:
    """Equal numbers give equal bytes."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return Picture(name, caption, figures.png(figure), buffer.getvalue())


def foreign(result: Result) -> Picture:
    title, axis = "What the ONNX rewrites are worth on networks of others", "times as fast as the plain file"
    rows = [row for row in result["rows"] if "left_out" not in row]
    footnote = "One thread of ONNX Runtime, interleaved medians, 95 % bootstrap intervals."
    figure, (axes,) = row_of_panels(title, footnote, [""], axis, "", (8.0, 1.6 + 0.4 * len(rows)))
    for place, (marker, colour) in enumerate((("o", "#1f5f99"), ("s", "#b3541e"))):
        for height, row in enumerate(rows):
            measured = row["times"][place]
            ours = next((time["times_as_fast"] for time in measured["rows"] if time["contestant"] == OURS), None)
            if ours:
                spread = [[ours["ratio"] - ours["low"]], [ours["high"] - ours["ratio"]]]
                label = f"batch {measured['batch']}" if height == 0 else "_"
                where = [ours["ratio"]], [height + 0.2 * place]
                axes.errorbar(*where, xerr=spread, capsize=3, marker=marker, color=colour, label=label)
    axes.axvline(1, color="#555555", linewidth=0.9)
    axes.set_yticks(range(len(rows)), [row["title"].replace("`", "") for row in rows])
    axes.invert_yaxis()
    legend(figure, axes)
    return picture("foreign", f"{title}: {axis}, with intervals", figure)


def rewrites(result: Result) -> Picture:
    titles = [f"depth {measured['depth']}" for measured in result["results"]]
    title, axis = "What the exact rewrites are worth", "times as fast as the plain export"
    rounds = len(result["results"][0]["rows"][0]["samples_ns"])
    footnote = f"Medians of {rounds} rounds or more, 95 % bootstrap intervals; each contestant at its best."
    figure, panels = row_of_panels(title, footnote, titles, axis, "", (max(8.0, 4.2 * len(titles)), 5.2))
    names: list[str] = []
    for axes, measured in zip(panels, result["results"], strict=True):
        best = [row for row in measured["rows"] if row.get("kind") == BEST and PLAIN in row["ratios"]]
        names = [f"{NAMES[row['model']]}, {row['contestant']}" for row in best]
        for height, row in enumerate(best):
            ratio, look = row["ratios"][PLAIN], style(row["model"]) | {"linestyle": "none"}
            hollow = {} if row["contestant"] not in (PLAIN, EAGER) else {"markerfacecolor": "white"}
            spread = [[ratio["ratio"] - ratio["low"]], [ratio["high"] - ratio["ratio"]]]
            axes.errorbar([ratio["ratio"]], [height], xerr=spread, capsize=3, **look | {"markersize": 7} | hollow)
        axes.axvline(1, color="#555555", linewidth=0.9)
        plain_ticks(axes, horizontal=True)
        axes.tick_params(axis="x", labelsize=8)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    return picture("rewrites", f"{title}: {axis}, with intervals; ViTBN at {', '.join(titles)}", figure)


def worth(result: Result) -> Picture:
    from benchmarks.reporting.worth_plot import worth as drawn

    return picture("worth", "ViTBN after each rewrite, in images a second, beside the CNN", drawn(result))


def frontier(result: Result) -> Picture:
    from benchmarks.reporting.accuracy_and_speed import plots

    (figure,) = plots(result).values()
    return picture("frontier", "What accuracy costs in speed: test accuracy against images a second", figure)


def operators(result: Result) -> Picture:
    title = f"Where the time of {result['model']} goes"
    footnote = f"Medians of {result['calls']} calls with {result['batch']} images under ONNX Runtime's profiler."
    figure, (axes,) = row_of_panels(title, footnote, [""], "milliseconds a call, in operators", "", (8.0, 3.4))
    graphs = result["graphs"]
    totals: dict[str, float] = {}
    for row in (row for graph in graphs for row in graph["operators"]):
        totals[row["operator"]] = totals.get(row["operator"], 0.0) + row["p50_us"]
    kinds = sorted(totals, key=lambda kind: -totals[kind])
    looks = dict(zip(kinds, BARS, strict=False)) | {"others": OTHERS}
    for height, graph in enumerate(graphs):
        taken = dict.fromkeys(looks, 0.0)
        for row in graph["operators"]:
            taken[row["operator"] if row["operator"] in looks else "others"] += row["p50_us"] / 1000
        left = 0.0
        for kind, (colour, hatch) in looks.items():
            label = kind if height == 0 else None
            place = ([height], [taken[kind]], 0.6, [left])
            axes.barh(*place, color=colour, hatch=hatch, edgecolor="white", label=label)
            left += taken[kind]
    axes.set_yticks(range(len(graphs)), [f"rewrites: {graph['rewrites']}" for graph in graphs])
    axes.invert_yaxis()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower right", ncols=4, frameon=False, fontsize=8)
    models = f"{result['model']}-{result['batch']}"
    return picture(f"operators-{models}", f"{title}: milliseconds a call by operator, plain and rewritten", figure)


def throughput(result: Result) -> Iterator[Picture]:
    from benchmarks.reporting.throughput_plot import by_model

    at_rates = all(row["rate"] for row in result["rows"])
    name, load = ("throughput-rates", "load of fixed rates") if at_rates else ("throughput", "load")
    if not is_cpu(result):  # several such runs may exist
        name = "-".join([name, "cuda", *map(str, dict.fromkeys(row["batch"] for row in result["rows"]))])
    for model, figure in by_model(result["rows"], f"{machine(result)}; load by {result['generator']}.").items():
        caption = f"{model} under {load}: latency of a request against images answered a second"
        yield picture(f"{name}-{model}", caption, figure)


def latency(result: Result) -> Iterator[Picture]:
    from benchmarks.reporting.latency_plots import figures as drawn

    device = "cpu" if result["environment"]["device"] == "cpu" else "cuda"
    of = [result["benchmark"], device]
    if result["benchmark"] == "latency":  # other batch sizes may exist
        of += map(str, dict.fromkeys(row["batch"] for row in result["rows"]))
    for name, figure in drawn(result).items():
        yield picture("-".join(of) + name, figure.get_suptitle(), figure)
