"""The sections about faults, bulk runs and fleets. Empty without results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.reporting.page import Block, Table, Text
from benchmarks.reporting.sources import Result, Row, Section, Sources, machine

COUNTS = {name: name for name in ("scenario", "sent", "right", "wrong", "refused", "failed")}
TIMES = {"p50_ms": "p50 ms", "p99_ms": "p99 ms", "worst_ms": "worst ms", "refusal_p99_ms": "refusal p99 ms"}
COLUMNS = {
    **COUNTS,
    **TIMES,
    "recovery_s": "recovery s",
    "stopped_s": "stopped s",
    "memory_grown_mb": "memory grown MB",
    "memory_mb_per_hour": "memory MB/hour",
    "descriptors_per_hour": "descriptors/hour",
}
BEHIND_PROXY = {"scenario": "scenario", "protocol": "protocol", **COUNTS, **TIMES, "event_s": "until right s"}
BULK = {
    "rows": "rows",
    "seconds": "s",
    "whole_images_per_s": "images/s, whole run",
    "whole_share": "share of the loop",
    "share_of_program": "share of the program",
    "images_per_s": "images/s after the start",
    "share_of_plain": "share of the loop after the start",
    "second_quarter_peak_mb": "MB, 2nd quarter",
    "second_half_peak_mb": "MB, 2nd half",
}


def faults(sources: Sources) -> Section:
    blocks: list[Block] = []
    for result in sources.all("faults"):
        blocks += [_told(result, "A supervised server"), _table(result["rows"], COLUMNS)]
        blocks += [Text(_lone(row)) for row in result["rows"] if row["scenario"] == "lone-requests"]
    for result in sources.all("proxy"):
        rows = [row for row in result["rows"] if "sent" in row]
        blocks += [_told(result, "Two servers behind the proxy, clients without retries"), _table(rows, BEHIND_PROXY)]
        blocks += [Text(text) for text in _others(result)]
    return Section("What do clients see when something breaks?", (), tuple(blocks))


def bulk(sources: Sources) -> Section:
    blocks: list[Block] = []
    for result in sources.all("bulk"):
        same = all((result["verdict"]["rows_once"], result["verdict"]["same_bytes"]))
        once = "Every row came once, byte by byte the same" if same else "**Rows were lost or doubled**"
        blocks += [
            _told(result, f"`vitbn bulk` with {result['model']}"),
            Text(
                "The program is ONNX Runtime over the same file, from start to end; the loop is ONNX Runtime over one "
                "batch in memory, without its start. Medians of rounds in turns."
            ),
            _table([{"rows": result["rows"], **result["undisturbed"]}], BULK),
            Text(f"{once}, after a worker and then the driver were killed and the command was given again."),
        ]
    return Section("What does a bulk run cost?", (), tuple(blocks))


def _told(result: Result, what: str) -> Text:
    return Text(f"{what}, {machine(result)}: `{result['command']}`.")


def _table(rows: list[Row], columns: Mapping[str, str]) -> Table:
    kept = {name: title for name, title in columns.items() if any(row.get(name) is not None for row in rows)}
    return Table(tuple(kept.values()), tuple(tuple(_shown(row.get(name)) for name in kept) for row in rows))


def _lone(row: Row) -> str:
    return (
        f"Of {row['sent']:,} lone requests in sequence {row['late']} took over 400 ms; p50 {row['p50_ms']:.2f} ms. The "
        f"same model without a bound on its queue, in turns: {row['unbounded_late']}, {row['unbounded_p50_ms']:.2f} ms."
    )


def _others(result: Result) -> Iterator[str]:
    """Scenarios without a row in the table."""
    for row in result["rows"]:
        if row["scenario"] == "hostile":
            refused = sum(400 <= status < 500 for status in row["statuses"].values())
            yield (
                f"Of {len(row['statuses'])} hostile requests {refused} were refused with 4xx. {row['good_right']} of "
                f"{row['good_sent']} good requests were answered, and {row['servers_alive']} of 2 servers lived on."
            )
        if row["scenario"] == "added":
            yield (
                f"The proxy adds {row['added_ms']:.2f} ms to the p50 of a lone request and takes "
                f"{row['proxy_memory_mb']:.0f} MB."
            )


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}" if 0 < value < 1 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
