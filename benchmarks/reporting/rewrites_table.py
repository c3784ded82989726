from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.measure.rewritten import pairs_of
from benchmarks.measure.tables import table

HEADER = ("model", "contestant", "M MACs", "one call ms", "best ms", "best way", "x eager", "x plain", "of GEMM")


def text(depth: int, rows: Sequence[dict[str, Any]]) -> str:
    rate, product = max((row["gflops_per_s"], row["name"]) for row in rows if "model" not in row)
    cells = []
    for one_call, best in pairs_of(rows):
        times = (f"{one_call['p50_ms']:.1f}", f"{best['p50_ms']:.1f}", best["way"])
        ratios = [f"{r['ratio']:.2f} ({r['low']:.2f} to {r['high']:.2f})" for r in best["ratios"].values()]
        share = f"{best['gflops_per_s'] / rate:.2f}"
        cells.append((best["model"], best["contestant"], f"{best['macs'] / 1e6:.2f}", *times, *ratios, share))
    rounds = len(rows[0]["samples_ns"])
    title = f"depth {depth}, medians of {rounds} interleaved rounds; GEMM: {rate:.0f} GFLOP/s, {product}"
    return f"{title}\n{table(HEADER, cells)}"
