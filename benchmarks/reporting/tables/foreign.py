"""The tables of foreign networks. `intervals`: whether a ratio's 95 % interval is shown."""

from __future__ import annotations

from statistics import median

from benchmarks.measure.decoder_networks import AS_EXPORTED, PRUNED
from benchmarks.measure.foreign_candidates import OPENVINO_OURS, OPTIMISER, OURS
from benchmarks.measure.padding_strategies import PADDED
from benchmarks.measure.result_file import Run
from benchmarks.reporting.tables.table import (
    Table,
    find_row,
    group_rows,
    measured_rows,
    milliseconds,
    number,
    percent,
    ratio_text,
)
from export.intervals import Ratio

SPEEDS = {OURS: "x plain", OPTIMISER: "optimiser", OPENVINO_OURS: "in OpenVINO"}  # candidate -> column


def foreign(run: Run, intervals: bool = True) -> Table:
    """Each network's work before and after the rewrites, and how many times as fast as the exported file it is."""
    measured = [row for row in run.rows if "macs" in row]
    batches, rows = sorted({row["batch"] for row in measured}), []
    columns = [(title, name, batch) for name, title in SPEEDS.items() for batch in batches]
    there = {row["candidate"] for row in measured}
    for (name,), network_rows in group_rows(measured, "network").items():
        first = network_rows[0]
        macs_after = [*first["macs_after"].values()][-1]
        cells = {"network": first["title"], "`--network`": f"`{name}`", "M MACs": f"{first['macs'] / 1e6:,.1f}"}
        cells |= {"rewritten": f"{macs_after / 1e6:,.1f}", "saved %": percent(1 - macs_after / first["macs"], 1)}
        cells["BatchNorms"] = f"{first['norms'][0]} to {first['norms'][1]}" if first["norms"][0] else "-"
        for title, candidate, batch in columns:
            if candidate not in there:
                continue
            row = next((r for r in network_rows if (r["batch"], r["candidate"]) == (batch, candidate)), {})
            cells[f"{title}, {batch}"] = _ratio(row.get("times_as_fast"), intervals)
        rows.append(cells)
    return Table(rows, 2)


def decoders(run: Run, intervals: bool = True) -> Table:
    """A row for each network and kind of call: how many times as fast as the exported file the rewritten and the pruned
    file are.
    """
    rows = []
    for (_, kind), kind_rows in group_rows(measured_rows(run), "network", "kind").items():
        exported, rewritten = (find_row(kind_rows, candidate=candidate) for candidate in (AS_EXPORTED, OURS))
        cells = {"network": exported["title"], "time of": kind, "M MACs": f"{exported['macs'] / 1e6:,.0f}"}
        cells |= {"rewritten": f"{rewritten['macs'] / 1e6:,.0f}"}
        for (threads,), candidates in group_rows(kind_rows, "threads").items():
            by_candidate = {row["candidate"]: row for row in candidates}
            cells[f"ms, {threads}"] = milliseconds(by_candidate[AS_EXPORTED]["p50_ms"])
            for candidate in (OURS, PRUNED):
                ratios = by_candidate.get(candidate, {}).get("ratios", {})
                cells[f"x {candidate}, {threads}"] = _ratio(ratios.get(AS_EXPORTED), intervals)
        rows.append(cells)
    return Table(rows, 2)


def packed(run: Run, intervals: bool = True) -> Table:
    """A row for each network and load: how many times as fast as the padded file the other ways to call it are."""
    rows = []
    for (_, load), load_rows in group_rows(measured_rows(run), "network", "load").items():
        padded = find_row(load_rows, candidate=PADDED)
        cells = {"network": padded["title"], "load": load}
        cells |= {"padded / real tokens": number(padded["padded_tokens"] / padded["tokens"])}
        cells |= {"ms padded": milliseconds(padded["p50_ms"])}
        for row in load_rows:
            if row is not padded:
                cells[f"x {row['candidate']}"] = _ratio(row["times_as_fast"], intervals)
        rows.append(cells)
    return Table(rows, 2)


def texts(run: Run) -> Table:
    """Ways to serve texts, relative to the padded file with joined requests: median, lowest and highest round."""
    rows = []
    for row in measured_rows(run):
        cells = {"load": row["load"], "served": row["candidate"], "texts/s": number(row["texts_per_s"])}
        cells |= {f"p{percent} ms": milliseconds(row[f"p{percent}_ms"]) for percent in (50, 99)}
        for name, column in (("rate", "x texts/s"), ("p99", "x p99")):
            ratios = row[f"{name}_of_{PADDED}_joined"]
            cells[column] = ratio_text(Ratio(median(ratios), min(ratios), max(ratios)))
        rows.append(cells)
    return Table(rows, 2)


def _ratio(ratio: dict[str, float] | None, intervals: bool) -> str:
    return "-" if not ratio else ratio_text(Ratio(**ratio)) if intervals else number(ratio["ratio"])
