from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.contest.rewritten import ALL, BEST, EAGER, INT8, ONE_CALL, PLAIN
from benchmarks.measure.timing import Ratio
from benchmarks.reporting import plots
from benchmarks.reporting.page import Block, Table, Text
from benchmarks.reporting.sources import Result, Row, Section, Sources, cell, machine, said, times_faster
from models.config import ModelName
from models.plots.figures import NAMES

BEST_WAY = "best: images a call, calls at once x threads"
FLOORS = (98.5, 99.0, 99.2, 99.3, 99.4, 99.5, 99.6)  # test accuracy, %


def row_of(rows: Sequence[Row], model: str, contestant: str, kind: str = BEST) -> Row | None:
    wanted = {"model": model, "contestant": contestant, "kind": kind}
    return next((row for row in rows if wanted.items() <= row.items()), None)


def rewrites(sources: Sources) -> Section:
    result = sources.first("rewrites")
    short, blocks = [], []
    for measured in result["results"] if result else ():
        blocks += list(_rewrites_at(measured["depth"], measured["rows"], result["images"] if result else 0))
        short += list(_rewrites_in_short(measured["depth"], measured["rows"]))
    if result:
        images = f"{result['images']:,} images, in float32 except int8"
        what = f"Milliseconds for {images}, on {machine(result)}, every contestant in turn"
        best = '"Best" is each contestant\'s own best number of images a call and sharing of the cores'
        interval = "In brackets the 95 % bootstrap interval of the ratio of the two medians, both of the same rounds"
        blocks[:0] = [Text(f"{what}. {best}. {interval}."), plots.worth(result), plots.rewrites(result)]
    return Section("How much faster is each rewrite, alone and together?", tuple(short), tuple(blocks))


def _rewrites_at(depth: int, rows: Sequence[Row], images: int) -> Iterator[Block]:
    yield Text(f"**Depth {depth}**, medians of {len(rows[0]['samples_ns'])} rounds. The CNN has no depth.")
    cells = []
    for best in (row for row in rows if row.get("kind") == BEST):
        one_call = row_of(rows, best["model"], best["contestant"], ONE_CALL)
        ratios = [cell(Ratio(**best["ratios"][other])) for other in (PLAIN, EAGER)]
        once = f"{one_call['p50_ms']:,.1f}" if one_call else "-"
        speed = f"{1000 * images / best['p50_ms']:,.0f}"
        names = (NAMES[best["model"]], best["contestant"])
        cells.append((*names, f"{best['macs'] / 1e6:.2f}", once, f"{best['p50_ms']:,.1f}", speed, *ratios, _way(best)))
    header = ("model", "contestant", "M MACs", "one call ms", "best ms", "images/s")
    yield Table((*header, "x plain", "x eager", BEST_WAY), tuple(cells), names=2)


def _way(row: Row) -> str:
    """The units stand in the header."""
    return str(row["way"]).replace(" a call", "").replace(" threads", "")


def _rewrites_in_short(depth: int, rows: Sequence[Row]) -> Iterator[str]:
    fold, every = (row_of(rows, "vitbn", who) for who in ("fold", ALL))
    if fold and every:
        alone, plain, eager = (
            said(Ratio(**ratio)) for ratio in (fold["ratios"][PLAIN], every["ratios"][PLAIN], every["ratios"][EAGER])
        )
        yield (
            f"**All rewrites** make ViTBN of depth {depth} {plain} as fast as its plain export and {eager} as fast as "
            f"PyTorch eager; folding alone {alone} as fast as the plain export."
        )
    if every and (int8 := row_of(rows, "vitbn", INT8)):
        yield f"**int8** with all rewrites, depth {depth}: {said(times_faster(int8, every))} the speed of float32."


Pair = tuple[str, str]
"""Model and contestant."""


def _pairs(result: Result, pairs: Sequence[tuple[str, Pair, Pair]]) -> Table:
    columns = [(measured, kind) for measured in result["results"] for kind in (BEST, ONE_CALL)]
    header = (f"depth {measured['depth']}, {'best' if kind == BEST else 'one call'}" for measured, kind in columns)
    cells = []
    for label, left, right in pairs:
        compared = ([row_of(each["rows"], *pair, kind) for pair in (left, right)] for each, kind in columns)
        cells.append((label, *(cell(times_faster(row, than)) if row and than else "-" for row, than in compared)))
    return Table(("times as fast", *header), tuple(cells), names=1)


def equal_depth(sources: Sources) -> Section:
    result = sources.first("rewrites")
    question = "How does ViTBN compare with ViT and the CNN at equal depth?"
    if not result:
        return Section(question, (), ())
    others: tuple[ModelName, ...] = ("vit", "vitbnffn", "cnn")
    pairs = [(f"ViTBN, {NAMES[other]} = 1", ("vitbn", ALL), (other, ALL)) for other in others]
    short = []
    for measured in result["results"]:
        ours, vit, cnn = (row_of(measured["rows"], model, ALL) for model in ("vitbn", "vit", "cnn"))
        if ours and vit and cnn:
            short.append(
                f"**At equal depth {measured['depth']}**, all rewrites done, ViTBN is {said(times_faster(ours, vit))} "
                f"as fast as ViT and {said(times_faster(ours, cnn))} as fast as the CNN, which has no depth."
            )
    what = "All rewrites that apply, ONNX Runtime, float32; above 1 ViTBN is faster."
    return Section(question, tuple(short), (Text(what), _pairs(result, pairs)))


def batchnorm(sources: Sources) -> Section:
    result = sources.first("rewrites")
    question = "What does BatchNorm itself bring once folded?"
    if not result:
        return Section(question, (), ())
    pairs = [
        ("unfolded: ViTBN, ViT = 1, PyTorch eager", ("vitbn", EAGER), ("vit", EAGER)),
        ("unfolded: ViTBN, ViT = 1, plain exports", ("vitbn", PLAIN), ("vit", PLAIN)),
        ("folded: ViTBN folded, its plain export = 1", ("vitbn", "fold"), ("vitbn", PLAIN)),
        ("folded: ViTBN folded, ViT plain = 1", ("vitbn", "fold"), ("vit", PLAIN)),
        ("all rewrites: ViTBN, ViT = 1", ("vitbn", ALL), ("vit", ALL)),
    ]
    short = []
    for measured in result["results"]:
        fold, vit = row_of(measured["rows"], "vitbn", "fold"), row_of(measured["rows"], "vit", PLAIN)
        if fold and vit:
            short.append(
                f"**BatchNorm alone**, folded, at depth {measured['depth']}: {said(times_faster(fold, vit))} the speed "
                "of the plain ViT."
            )
    what = (
        "The first two rows compare the unfolded norms, the next two add folding, the last adds the other rewrites. "
        "Most of these apply to ViT, too; attention over pixels, at depth 1, needs the fold."
    )
    return Section(question, tuple(short), (Text(what), _pairs(result, pairs)))


def equal_accuracy(sources: Sources) -> Section:
    result = sources.first("frontier-measured")
    question = "How do they compare at equal accuracy?"
    if not result:
        return Section(question, (), ())
    rows = result["derived"]
    cells = tuple(
        (
            row["checkpoint"],
            NAMES[row["model"]],
            str(row["depth"] or "-"),
            f"{100 * row['test_accuracy']:.2f}",
            f"{row['macs'] / 1e6:.2f}",
            f"{row['images_per_s']:,.0f}",
            _way(row),
        )
        for row in reversed(rows)
    )
    header = ("checkpoint", "model", "depth", "test accuracy %", "M MACs", "images/s", BEST_WAY)
    noise = "Of 10,000 test images two accuracies near 99.4 % differ by chance by up to about 0.2 points (95 %)."
    what = f"Every network shipped, all rewrites, each in its best way, on {machine(result)}. {noise}"
    floors, short = _above_floors(rows)
    above = Text(
        "Images a second of the fastest network of each model, by the least share of test images it has to get right:"
    )
    blocks = (Text(what), plots.frontier(result), Table(header, cells, 2), above, floors)
    return Section(question, short, blocks)


def fastest(rows: Sequence[Row], floor: float, models: Sequence[str] | None = None) -> Row | None:
    able = [row for row in rows if 100 * row["test_accuracy"] >= floor and (not models or row["model"] in models)]
    return max(able, key=lambda row: float(row["images_per_s"]), default=None)


def _above_floors(rows: Sequence[Row]) -> tuple[Table, tuple[str, ...]]:
    models = [name for name in NAMES if any(row["model"] == name for row in rows)]
    cells, short = [], []
    for floor in FLOORS:
        best = {model: fastest(rows, floor, [model]) for model in models}
        ours, cnn = best.get("vitbn"), best.get("cnn")
        ratio = times_faster(ours, cnn) if ours and cnn else None
        speeds = (f"{row['images_per_s']:,.0f}" if row else "none" for row in best.values())
        cells.append((f"{floor:.1f} %", *speeds, cell(ratio) if ratio else "-"))
        if ours and ratio:
            depth = f"of depth {ours['depth']}"
            sentence = f"ViTBN {depth} is {said(ratio)} as fast as the CNN"
            short.append(f"**With at least {floor:.1f} % of the test images right**, {sentence}.")
    header = ("at least", *(NAMES[model] for model in models), "ViTBN, CNN = 1")
    return Table(header, tuple(cells)), tuple(short[i] for i in sorted({0, len(short) // 2, len(short) - 1}) if short)
