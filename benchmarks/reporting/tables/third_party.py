"""Tables of third-party networks."""

from __future__ import annotations

from statistics import median

from benchmarks.measure.decoder_networks import PLAIN as AS_EXPORTED
from benchmarks.measure.decoder_networks import PRUNED
from benchmarks.measure.foreign_candidates import OPENVINO_OURS, OPTIMISER, OURS
from benchmarks.measure.padded_texts import PADDED
from benchmarks.measure.run import Run
from benchmarks.reporting.tables.table import Table, cell, find, measured, milliseconds, number, percent
from export.intervals import Ratio

SPEEDS = (
    *(("x plain", batch, OURS) for batch in (1, 8)),
    *(("optimiser", batch, OPTIMISER) for batch in (1, 8)),
    *(("in OpenVINO", batch, OPENVINO_OURS) for batch in (1, 8)),
)


def foreign(run: Run, intervals: bool = True) -> Table:
    rows = []
    for name in dict.fromkeys(row["network"] for row in run.rows if "macs" in row):
        own = [row for row in run.rows if row["network"] == name]
        first = own[0]
        left = [*first["macs_after"].values()][-1]
        cells = {"network": first["title"], "`--network`": f"`{name}`", "M MACs": f"{first['macs'] / 1e6:,.1f}"}
        cells |= {"rewritten": f"{left / 1e6:,.1f}", "saved %": percent(1 - left / first["macs"], 1)}
        cells["BatchNorms"] = f"{first['norms'][0]} to {first['norms'][1]}" if first["norms"][0] else "-"
        for title, batch, candidate in SPEEDS:
            row = next((r for r in own if (r["batch"], r["candidate"]) == (batch, candidate)), {})
            cells[f"{title}, {batch}"] = _ratio(row.get("times_as_fast"), intervals)
        rows.append(cells)
    return Table(rows, 2)


def decoders(run: Run, intervals: bool = True) -> Table:
    """How many times as fast as the exported file."""
    rows = []
    for name, kind in dict.fromkeys((row["network"], row["kind"]) for row in measured(run)):
        own = [row for row in measured(run) if (row["network"], row["kind"]) == (name, kind)]
        plain = find(own, candidate=AS_EXPORTED)
        left = find(own, candidate=OURS)["macs"]
        cells = {"network": plain["title"], "time of": kind, "M MACs": f"{plain['macs'] / 1e6:,.0f}"}
        cells |= {"rewritten": f"{left / 1e6:,.0f}"}
        for threads in dict.fromkeys(row["threads"] for row in own):
            here = {row["candidate"]: row for row in own if row["threads"] == threads}
            cells[f"ms, {threads}"] = milliseconds(here[AS_EXPORTED]["p50_ms"])
            for candidate in (OURS, PRUNED):
                ratios = here.get(candidate, {}).get("ratios", {})
                cells[f"x {candidate}, {threads}"] = _ratio(ratios.get(AS_EXPORTED), intervals)
        rows.append(cells)
    return Table(rows, 2)


def packed(run: Run, intervals: bool = True) -> Table:
    """How many times as fast as the padded file."""
    rows = []
    for name, load in dict.fromkeys((row["network"], row["load"]) for row in measured(run)):
        own = [row for row in measured(run) if (row["network"], row["load"]) == (name, load)]
        padded = find(own, candidate=PADDED)
        cells = {"network": padded["title"], "load": load}
        cells |= {"padded / real tokens": number(padded["padded_tokens"] / padded["tokens"])}
        cells |= {"ms padded": milliseconds(padded["p50_ms"])}
        for row in own:
            if row is not padded:
                cells[f"x {row['candidate']}"] = _ratio(row["times_as_fast"], intervals)
        rows.append(cells)
    return Table(rows, 2)


def texts(run: Run) -> Table:
    """Ways to serve texts, relative to the padded file with joined requests: median, lowest and highest round."""
    rows = []
    for row in measured(run):
        cells = {"load": row["load"], "served": row["candidate"], "texts/s": number(row["texts_per_s"])}
        cells |= {f"p{percent} ms": milliseconds(row[f"p{percent}_ms"]) for percent in (50, 99)}
        for name, column in (("rate", "x texts/s"), ("p99", "x p99")):
            ratios = row[f"{name}_of_{PADDED}_joined"]
            cells[column] = cell(Ratio(median(ratios), min(ratios), max(ratios)))
        rows.append(cells)
    return Table(rows, 2)


def _ratio(ratio: dict[str, float] | None, intervals: bool) -> str:
    return "-" if not ratio else cell(Ratio(**ratio)) if intervals else number(ratio["ratio"])
