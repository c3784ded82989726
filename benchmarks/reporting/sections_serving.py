from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import PurePath

from benchmarks.load.terms import engine, engine_and_sharing, wire
from benchmarks.load.transports import IN_PROCESS
from benchmarks.reporting import plots
from benchmarks.reporting.page import Block, Points, Table, Text
from benchmarks.reporting.sources import (
    Result,
    Row,
    Section,
    Sources,
    cell,
    is_cpu,
    machine,
    number,
    said,
    times_faster,
)

WANTED = (1_000, 100_000)  # images a second


def server(sources: Sources) -> Section:
    short: list[str] = []
    blocks: list[Block] = []
    for result in sorted(sources.all("overhead"), key=is_cpu, reverse=True):
        short += [] if short else _overhead_in_short(result)
        blocks += _overhead(result)
    for result in sources.all("throughput"):
        blocks += [Text(f"**Under load**, {result['generator']}, {machine(result)}: `{result['command']}`.")]
        blocks += [*plots.throughput(result), _throughput(result), *_saturation(result)]
        blocks += [Points(tuple(map(_refused, result["missing"])))] if result["missing"] else []
    return Section("What does Triton cost over in-process?", tuple(short), tuple(blocks))


def _overhead(result: Result) -> list[Block]:
    cells = []
    for row in result["rows"]:
        alone = _alone(result, row)
        times = (f"{row['p50_ms']:,.2f}", f"{row['p99_ms']:,.2f}", f"{row['images_per_s']:,.0f}")
        client = f"{row['client_ms']:.2f}" if "client_ms" in row else "-"
        ratio = cell(times_faster(row, alone))
        cells.append((row["transport"], f"{row['images_a_call']:,}", *times, ratio, f"{row['added_ms']:,.2f}", client))
    header = (
        "transport",
        "images a call",
        "p50 ms",
        "p99 ms",
        "images/s",
        "in process = 1",
        "added ms",
        "client's part ms",
    )
    form = f"`{result['model']}` with all rewrites, {engine(result)}"
    what = f"{form}client, server and the same file in process, {machine(result)}."
    return [Text(what), Table(header, tuple(cells))]


def _alone(result: Result, row: Row) -> Row:
    same = {"transport": IN_PROCESS, "images_a_call": row["images_a_call"]}
    return next(other for other in result["rows"] if same.items() <= other.items())


def _overhead_in_short(result: Result) -> list[str]:
    served = [row for row in result["rows"] if row["transport"] != IN_PROCESS]
    lone = min((row for row in served if row["images_a_call"] == 1), key=lambda row: float(row["p50_ms"]), default=None)
    many = max((row for row in served if row["images_a_call"] > 1), key=lambda row: float(row["images_per_s"]))
    if lone is None:  # the benchmark was killed before its second table
        return []
    ratio = said(times_faster(many, _alone(result, many)))
    return [
        f"**Triton** answers {many['images_a_call']:,} images of one call at {ratio} the speed of the same file in "
        f"process, and adds {lone['added_ms']:.2f} ms to a lone image ({many['transport']} and {lone['transport']} are "
        "the quickest)."
    ]


def _throughput(result: Result) -> Table:
    unit, count = ("core", result["environment"]["threads"]) if is_cpu(result) else ("GPU", 1)
    cells = []
    for row in result["rows"]:
        times = (row[f"p{percent}_ms"] for percent in (50, 90, 95, 99))
        inside = (row["server_queue_ms"], row["server_compute_ms"])
        alone = row["in_process_images_per_s"]
        ratio = f"{row['images_per_s'] / alone:.2f} ({_ratio_range(row)})" if alone else "-"
        names = (row["model"], wire(row), engine_and_sharing(row), _asked(row), str(row["batch"]))
        speed, cost = f"{row['images_per_s']:,.0f}", number(count * 1e6 / row["images_per_s"])
        cells.append((*names, speed, cost, *map(_ms, (*times, *inside)), ratio))
    header = ("model", "protocol", "instances x threads", "load", "images a request", "images/s")
    costs = f"{unit}-seconds a million images"
    latencies = ("p50 ms", "p90 ms", "p95 ms", "p99 ms", "server: queue ms", "compute ms")
    return Table((*header, costs, *latencies, "in process = 1"), tuple(cells), 4)


def _asked(row: Row) -> str:
    return f"{row['in_flight']} in flight" if row["in_flight"] else f"{row['rate']:,.0f} a second"


def _refused(row: Row) -> str:
    what = f"{row['model']}, {engine(row)}{wire(row)}, {row['batch']} a request, {_asked(row)}"
    return f"{what}: not measured, {row['reason']}"


def _ratio_range(row: Row) -> str:
    """Lowest and highest ratio of a round; rounds are too few for an interval."""
    pairs = zip(row["samples"], row["in_process_samples"], strict=False)
    ratios = [served["images_per_s"] / alone["images_per_s"] for served, alone in pairs]
    return f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "one round"


def _ms(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:,.2f}"


def _saturation(result: Result) -> list[Block]:
    points: list[Row] = result["saturation"]
    reached = [point for point in points if not point["beyond"]]
    counted = f"The largest load saturated {len(reached)} of {len(points)} combinations of model, sharing and batch."
    return [Text(counted), *([Points(tuple(map(_point, reached)))] if reached else [])] if points else []


def _point(point: Row) -> str:
    who = f"{point['model']}, {engine_and_sharing(point)}, {wire(point)}, {point['batch']} a request"
    if point["by"] == "rate" and point["rate"] is None:
        return f"{who}: no rate was carried"
    at = f"{point['images_per_s']:,.0f} images/s, p99 {point['p99_ms']:.2f} ms"
    limit = "largest rate carried" if point["by"] == "rate" else "fewest requests for the full rate"
    return f"{who}: {limit}, {_asked(point)}: {at}"


def cheapest(sources: Sources) -> Section:
    frontier = sources.first("frontier-measured")
    question = f"What is the cheapest way to serve {' and '.join(f'{rate:,}' for rate in WANTED)} images a second?"
    if not frontier:
        return Section(question, (), ())
    networks = frontier["derived"]
    cores = frontier["environment"]["threads"]
    on_cpus = [result for result in sources.all("throughput") if is_cpu(result)]  # a GPU is no number of cores
    served = [row for result in on_cpus for row in result["rows"] if row["p99_ms"] <= result["max_p99_ms"]]
    ways = {
        "in process, batches": {row["checkpoint"]: row for row in networks},
        "Triton, batches": _best_served(networks, served, lone=False),
        "Triton, one image a request": _best_served(networks, served, lone=True),
    }
    blocks: list[Block] = [
        Text(
            "Machines = images a second wanted / images a second measured, rounded up; cores = the same, times the "
            f"{cores} cores of a machine of this class, not rounded. Networks at full load; for a share u divide by u. "
            "Each table holds the networks that no other beats in both accuracy and rate: take the first that is "
            "accurate enough. With Triton, client and server share the cores, and a measurement counts if its p99 is "
            "within the benchmark's bound."
        )
    ]
    short = []
    for way, rates in ways.items():
        best = undominated(networks, rates)
        blocks += [Text(f"**{way[0].upper()}{way[1:]}**"), _needs(best, cores)] if best else [_no_rates(way)]
        short += _cheapest_in_short(way, best, cores) if best else []
    return Section(question, tuple(short), tuple(blocks))


def _best_served(networks: Sequence[Row], served: Sequence[Row], lone: bool) -> dict[str, Row]:
    best = {}
    for network in networks:
        path = PurePath(network["checkpoint"])
        own = [row for row in served if row["model"] == path.stem and path.parent.name == "pretrained"]
        own = [row for row in own if not lone or row["batch"] == 1]
        own = [row for row in own if row.get("precision", "fp32") == "fp32"]  # the accuracy belongs to float32
        if own:
            best[network["checkpoint"]] = max(own, key=lambda row: float(row["images_per_s"]))
    return best


def undominated(networks: Sequence[Row], rates: Mapping[str, Row]) -> list[tuple[Row, Row]]:
    """Networks and rates, fastest first, without those that a faster network matches in accuracy."""
    known = [(network, rates[network["checkpoint"]]) for network in networks if network["checkpoint"] in rates]
    known.sort(key=lambda pair: float(pair[1]["images_per_s"]), reverse=True)
    best: list[tuple[Row, Row]] = []
    for network, rate in known:
        if not best or network["test_accuracy"] > best[-1][0]["test_accuracy"]:
            best.append((network, rate))
    return best


def machines(wanted: float, rate: float) -> int:
    return ceil(wanted / rate)


def _needs(best: Sequence[tuple[Row, Row]], cores: int) -> Table:
    header = ["network", "test accuracy %", "images/s", "p99 ms"]
    header += [f"{what} for {wanted:,}/s" for wanted in WANTED for what in ("cores", "machines")]
    cells = []
    for network, rate in best:
        speed = rate["images_per_s"]
        needs = [text for wanted in WANTED for text in (number(wanted / speed * cores), f"{machines(wanted, speed):,}")]
        name = PurePath(network["checkpoint"]).stem + (f", {rate['batch']} a request" if "batch" in rate else "")
        p99 = f"{rate['p99_ms']:,.1f}" if "batch" in rate else "-"
        cells.append((name, f"{100 * network['test_accuracy']:.2f}", f"{speed:,.0f}", p99, *needs))
    return Table(tuple(header), tuple(cells))


def _no_rates(way: str) -> Text:
    return Text(f"**{way[0].upper()}{way[1:]}**: not measured, there is no result of `benchmarks/throughput.py`.")


def _cheapest_in_short(way: str, best: Sequence[tuple[Row, Row]], cores: int) -> list[str]:
    said_of = []
    for network, rate in (best[i] for i in sorted({0, len(best) - 1})):
        need = " and ".join(
            f"{number(wanted / rate['images_per_s'] * cores)} cores for {wanted:,}/s" for wanted in WANTED
        )
        said_of.append(f"{PurePath(network['checkpoint']).stem} ({100 * network['test_accuracy']:.2f} %) {need}")
    return [f"**Cheapest {way}**: {'; '.join(said_of)}."]
