"""Times networks before and after the exact rewrites, as one call and in their best way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks.measure.candidate import Candidate
from benchmarks.measure.devices import cores
from benchmarks.measure.network import Network
from benchmarks.measure.run import Row
from benchmarks.measure.workload import Workload, best_workload, runner
from models.networks.config import ModelConfig, ModelName

if TYPE_CHECKING:
    from benchmarks.measure.candidate import Program
    from benchmarks.measure.reference import Reference
    from benchmarks.measure.timing import Durations
    from export.precision_table import Precision

IMAGES, SEARCHED = 5000, 1280  # images that are timed, and images of the search for the best way
ROUNDS = 7

EAGER, PLAIN, ALL = "PyTorch eager", "plain", "all"
INT8 = f"{ALL}, int8"
FUSED_ATTENTION = f"{EAGER}, fused attention"
ALONE = ("fold", "absorb", "CLS row")
TOGETHER = ("fold + absorb", "fold + CLS row", "fold + absorb + CLS row")

# ONNX files in float32 after the rewrites in their name, except PyTorch's and int8.
FORMS: dict[ModelName, tuple[str, ...]] = {
    "vitbn": (EAGER, FUSED_ATTENTION, PLAIN, *ALONE, *TOGETHER, ALL, INT8),
    "vitbnffn": (EAGER, PLAIN, ALL),
    "vit": (EAGER, PLAIN, ALL),
    "cnn": (EAGER, PLAIN, ALL),
}

ONE_CALL, BEST = "one call", "best"


def measure(depth: int, seconds: float, add: Callable[..., None]) -> None:
    """Adds JSON-ready rows, also at Ctrl-C; raises EquivalenceError."""
    from benchmarks.measure.progress import steps
    from benchmarks.measure.reference import reference
    from benchmarks.measure.roofline import gemms
    from benchmarks.measure.timing import finished_rounds, time_interleaved

    rows: list[Row] = []
    runs: dict[str, Callable[[], object]] = {}
    for name, (run, flops) in gemms(cores()).items():
        runs[name] = run
        rows.append({"name": name, "flops": flops})
    references = [reference(Network(model, ModelConfig(model=model, depth=depth))) for model in FORMS]
    pairs = [(each, form) for each in references for form in FORMS[each.config.model]]
    for each, form in steps(pairs, f"depth {depth}: searching the best way"):
        images, model = each.images(IMAGES), each.config.model
        candidate, program, macs = _built(each, form)
        one_call, quickest = Workload(IMAGES, micro_batch=IMAGES), best_workload(program, candidate, images[:SEARCHED])
        for kind, way in ((ONE_CALL, one_call), (BEST, quickest)):
            row = {"name": f"{model}, {form}, {kind}", "model": model, "candidate": form, "kind": kind}
            runs[row["name"]] = runner(program, candidate, way, images)
            rows.append(row | {"way": str(way), "macs": macs, "flops": 2 * macs * IMAGES})
    finished_rounds(
        lambda: time_interleaved(runs, seconds, f"depth {depth}", ROUNDS),
        lambda measured: add(*({"at_depth": depth, "images": IMAGES, **row} for row in timed_rows(rows, measured))),
    )


def _built(of: Reference, form: str) -> tuple[Candidate, Program, int]:
    from benchmarks.measure.engines import start
    from benchmarks.measure.reference import program, rewritten_file

    if form in (EAGER, FUSED_ATTENTION):
        engine = "torch" if form == EAGER else "torch-sdpa"
        candidate = Candidate(of.network, engine, rewrites="none")
        return candidate, *program(of, candidate)
    precision: Precision = "int8" if form == INT8 else "fp32"
    candidate = Candidate(of.network, precision=precision)
    data, macs = rewritten_file(of, passes_of(form), precision)
    of.check(f"{of.config.model}, {form}", precision, len(of.proof), start(data, candidate)(of.proof))
    return candidate, data, macs


def passes_of(form: str) -> tuple[str, ...]:
    """The compiler's passes of a form."""
    from export.checkpoint_to_onnx import Form
    from export.compiler.passes import PASSES

    if form == PLAIN:
        return ()
    if form in (ALL, INT8):
        return PASSES
    named = {"fold": Form("bn").passes, "absorb": ("absorb-queries",), "CLS row": ("read-rows",)}
    return tuple(name for part in form.split(" + ") for name in named[part])


def timed_rows(rows: Sequence[Row], measured: Mapping[str, Durations]) -> list[Row]:
    """Adds the figures; "best" is the faster of the best way and one call."""
    from benchmarks.measure.timing import ratio_with_interval

    timed, durations = [dict(row) for row in rows], dict(measured)
    for one_call, best in pairs_of(timed):
        if measured[one_call["name"]].percentile_ms(50) < measured[best["name"]].percentile_ms(50):
            durations[best["name"]] = measured[one_call["name"]]
            best["way"] = one_call["way"]
    for row in timed:
        own = durations[row["name"]]
        row |= own.row()
        row["gflops_per_s"] = row["flops"] / row["p50_ms"] / 1e6
        if "model" in row:
            row["ratios"] = {
                other: asdict(ratio_with_interval(durations[f"{row['model']}, {other}, {row['kind']}"], own))
                for other in (EAGER, PLAIN)
                if f"{row['model']}, {other}, {row['kind']}" in durations
            }
    return [*timed]


def pairs_of(rows: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(one call, best) of each network and form."""
    measured = [row for row in rows if "model" in row]
    return list(zip(measured[::2], measured[1::2], strict=True))
