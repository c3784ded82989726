"""Times networks before and after the exact rewrites: in one call, and with the fastest batch size and threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.measure.candidate import Candidate
from benchmarks.measure.devices import cores
from benchmarks.measure.engines import OPTIMISED, RUNTIMES
from benchmarks.measure.measured_network import Network
from benchmarks.measure.result_file import Row
from benchmarks.measure.workload_settings import Workload, best_workload, runner
from models.networks.config import ModelConfig, ModelName

if TYPE_CHECKING:
    from benchmarks.measure.candidate import Program
    from benchmarks.measure.interleaved_timing import Durations
    from benchmarks.measure.reference import Reference
    from export.precision_table import Precision

IMAGES, SEARCHED = 5000, 1280  # images that are timed, and images to search the best way with
ROUNDS = 7

EAGER, PLAIN, ALL = "PyTorch eager", "plain", "all"
INT8 = f"{ALL}, int8"
FUSED_ATTENTION = f"{EAGER}, fused attention"
ALONE = ("fold", "absorb", "CLS row")
TOGETHER = ("fold + absorb", "fold + CLS row", "fold + absorb + CLS row")

# The forms of each network. A form that names rewrites is a float32 ONNX file after these rewrites.
FORMS: dict[ModelName, tuple[str, ...]] = {
    "vitbn": (EAGER, FUSED_ATTENTION, PLAIN, *ALONE, *TOGETHER, ALL, INT8),
    "vitbnffn": (EAGER, PLAIN, ALL),
    "vit": (EAGER, PLAIN, ALL),
    "cnn": (EAGER, PLAIN, ALL),
}

ONE_CALL, BEST = "one call", "best"


def measure(depth: int, seconds: float, add: Callable[..., None]) -> None:
    """Passes JSON-ready rows to `add`, also after Ctrl-C. `depth`: blocks of a transformer. Raises EquivalenceError.

    The rows: limits of this machine, and each form of each network, in one call and in its best way.
    """
    from benchmarks.measure.interleaved_timing import time_interleaved
    from benchmarks.measure.peak_flops_and_bandwidth import gemms
    from benchmarks.measure.progress import steps
    from benchmarks.measure.reference import make_reference

    rows: list[Row] = []
    runs: dict[str, Callable[[], object]] = {}
    for name, (run, flops) in gemms(cores()).items():
        runs[name] = run
        rows.append({"name": name, "flops": flops})
    references = [make_reference(Network(model, ModelConfig(model=model, depth=depth))) for model in FORMS]
    pairs = [(reference, form) for reference in references for form in FORMS[reference.config.model]]
    for reference, form in steps(pairs, f"depth {depth}: searching the best way"):
        images, model = reference.images(IMAGES), reference.config.model
        candidate, program, macs = _built(reference, form)
        one_call, quickest = Workload(IMAGES, micro_batch=IMAGES), best_workload(program, candidate, images[:SEARCHED])
        for kind, way in ((ONE_CALL, one_call), (BEST, quickest)):
            row = {"name": f"{model}, {form}, {kind}", "model": model, "candidate": form, "kind": kind}
            runs[row["name"]] = runner(program, candidate, way, images)
            rows.append(row | {"way": str(way), "macs": macs, "flops": 2 * macs * IMAGES})

    def use(measured: Mapping[str, Durations]) -> None:
        add(*({"at_depth": depth, "images": IMAGES, **row} for row in timed_rows(rows, measured)))

    time_interleaved(runs, seconds, f"depth {depth}", ROUNDS, use=use)


def _built(reference: Reference, form: str) -> tuple[Candidate, Program, int]:
    """The candidate, what its engine takes, and its multiply-accumulates per image. Raises EquivalenceError."""
    from benchmarks.measure.engines import start
    from benchmarks.measure.reference import program, rewritten_file

    if form in (EAGER, FUSED_ATTENTION):
        candidate = Candidate(reference.network, RUNTIMES["torch" if form == EAGER else "torch-sdpa"])
        return candidate, *program(reference, candidate)
    precision: Precision = "int8" if form == INT8 else "fp32"
    candidate = Candidate(reference.network, OPTIMISED, precision=precision)
    data, macs = rewritten_file(reference, passes_of(form), precision)
    images = reference.proof_images
    reference.check(f"{reference.config.model}, {form}", precision, len(images), start(data, candidate)(images))
    return candidate, data, macs


def passes_of(form: str) -> tuple[str, ...]:
    """The compiler's passes that make a form of an ONNX file."""
    from export.checkpoint_to_onnx import Form
    from export.compiler.passes import PASSES

    if form == PLAIN:
        return ()
    if form in (ALL, INT8):
        return PASSES
    passes = {"fold": Form("bn").passes, "absorb": ("absorb-queries",), "CLS row": ("read-rows",)}
    return tuple(name for rewrite in form.split(" + ") for name in passes[rewrite])


def timed_rows(rows: Sequence[Row], measured: Mapping[str, Durations]) -> list[Row]:
    """The rows with their figures. The row "best" takes the times of "one call" if one call is faster.

    `measured`: by the rows' names. `ratios`: the speed relative to other forms of the network.
    """
    from benchmarks.measure.interleaved_timing import ratio_with_interval

    timed, durations = [dict(row) for row in rows], dict(measured)
    of_networks = [row for row in timed if "model" in row]  # one call, best, one call, best, …
    for one_call, best in zip(of_networks[::2], of_networks[1::2], strict=True):
        if measured[one_call["name"]].percentile_ms(50) < measured[best["name"]].percentile_ms(50):
            durations[best["name"]] = measured[one_call["name"]]
            best["way"] = one_call["way"]
    for row in timed:
        row_durations = durations[row["name"]]
        row |= row_durations.row()
        row["gflops_per_s"] = row["flops"] / row["p50_ms"] / 1e6
        if "model" in row:
            row["ratios"] = {
                base: asdict(ratio_with_interval(durations[base_name], row_durations))
                for base in (EAGER, PLAIN)
                if (base_name := f"{row['model']}, {base}, {row['kind']}") in durations
            }
    return [*timed]
