from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, product
from pathlib import Path

from benchmarks.contest.rewritten import ALL, EAGER, PLAIN
from benchmarks.measure.timing import Ratio
from benchmarks.reporting.page import Block, Heading, Picture, Points, Table, Text, html, markdown
from benchmarks.reporting.sections_faults import bulk, faults
from benchmarks.reporting.sections_foreign import foreign
from benchmarks.reporting.sections_machine import latency, limit, operators, precision
from benchmarks.reporting.sections_models import batchnorm, equal_accuracy, equal_depth, rewrites, row_of
from benchmarks.reporting.sections_serving import cheapest, server
from benchmarks.reporting.sources import COMMANDS, File, Section, Sources, cell, is_cpu, machine
from models.files import write_atomically

TITLE = "What the networks, their rewrites and the server are worth"

ANSWERS: tuple[tuple[Callable[[Sources], Section], tuple[str, ...]], ...] = (
    (rewrites, ("rewrites",)),
    (equal_depth, ("rewrites",)),
    (equal_accuracy, ("frontier-measured",)),
    (batchnorm, ("rewrites",)),
    (foreign, ("foreign",)),
    (latency, ("latency", "sweep")),
    (operators, ("operators",)),
    (limit, ("rewrites",)),
    (precision, ("engines", "accuracy")),
    (server, ("overhead", "throughput")),
    (cheapest, ("frontier-measured", "throughput")),
    (faults, ()),
    (bulk, ()),
)
VERSIONS = ("torch", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt")
HEADLINES = (("vitbn", "fold", PLAIN), ("vitbn", ALL, PLAIN), ("vitbn", ALL, EAGER), ("vit", ALL, PLAIN))


def page(sources: Sources) -> list[Block]:
    found = [(answer(sources), needs) for answer, needs in ANSWERS]
    answers = [(answer, needs) for answer, needs in found if needs or answer.blocks]
    blocks: list[Block] = [*_opening(sources), Heading("In short")]
    blocks.append(Points(tuple(line for answer, _ in answers for line in answer.short) or ("Nothing was measured.",)))
    for answer, needs in answers:
        blocks += list(answer)
        blocks += [Text(not_measured(name)) for name in needs if not sources.all(name)]
    return [*blocks, *_agreement(sources), *_gaps(sources), *_origin(sources)]


def not_measured(name: str) -> str:
    return f"**Not measured**: none of the files is a result of `{COMMANDS[name]}`."


def _opening(sources: Sources) -> Iterator[Block]:
    places = list(dict.fromkeys(machine(file.content) for file in sources.files))
    yield Text(
        f"Measured on {'; '.join(places)}. `make benchmarks` measures all of it again and writes this page. Ratios "
        "compare medians of the same interleaved run; in brackets stands the 95 % bootstrap interval."
    )
    if all(is_cpu(file.content) for file in sources.files):
        yield Text("**No GPU figure exists yet**: every file comes from a CPU.")
    environments = [file.content["environment"] for file in sources.files]
    kinds = {(each["cpu"], each["cores"], each["device"]) for each in environments}
    if len(kinds) > 1:
        yield Text(f"**{len(kinds)} kinds of machines**: compare numbers within a table, not between tables.")


def _agreement(sources: Sources) -> Iterator[Block]:
    yield Heading("Do two runs agree?")
    runs = [file.content for file in sources.files if file.benchmark == "rewrites"]
    twice = [
        (first, second)
        for left, right in combinations(runs, 2)
        for first, second in product(left["results"], right["results"])
        if machine(left) == machine(right) and first["depth"] == second["depth"]
    ]
    cells = []
    for measured, (model, who, than) in product(twice, HEADLINES):
        rows = [row_of(each["rows"], model, who) for each in measured]
        ratios = [Ratio(**row["ratios"][than]) for row in rows if row]
        if len(ratios) == 2:
            what = f"{model}, {who}; {than} = 1"
            cells.append((what, str(measured[0]["depth"]), *map(cell, ratios), overlap(*ratios)))
    if cells:
        yield Text("Each run searches the best way of every contestant anew; the intervals do not include that.")
        yield Table(("ratio", "depth", "first run", "second run", "intervals overlap"), tuple(cells))
    else:
        yield Text("**Not measured**: that takes two results of `benchmarks/rewrites.py` on the same machine.")


def overlap(left: Ratio, right: Ratio) -> str:
    return "yes" if max(left.low, right.low) <= min(left.high, right.high) else "**no**"


def _gaps(sources: Sources) -> Iterator[Block]:
    lines = [not_measured(name) for name in COMMANDS if not sources.all(name)]
    if all(is_cpu(file.content) for file in sources.files):
        lines.append("**GPU**, CUDA graphs and ONNX Runtime on CUDA: `make benchmarks-gpu` measures them on a GPU.")
    runtimes = {row["runtime"] for result in sources.all("latency") for row in result["rows"]}
    if "tensorrt" not in runtimes:
        lines.append("**TensorRT** needs an NVIDIA GPU and `'.[tensorrt]'`.")
    lines += [f"`{name}`: interrupted, not on this page." for name in sources.interrupted]
    yield Heading("What was not measured")
    yield Points(tuple(lines)) if lines else Text("Nothing of what this page asks.")


def _origin(sources: Sources) -> Iterator[Block]:
    yield Heading("Where the numbers come from")
    origins = [_origin_of(file) for file in sources.files]
    alike = {name for name in ("CPU", "device", "cores", "versions") if len({each[name] for each in origins}) == 1}
    if alike:
        yield Text(f"In every file: {'; '.join(f'{name} {origins[0][name]}' for name in origins[0] if name in alike)}.")
    names = [name for name in origins[0] if name not in alike]
    cells = tuple(tuple(each[name] for name in names) for each in origins)
    yield Table(tuple(names), cells, len(names) - 1)


def _origin_of(file: File) -> dict[str, str]:
    environment, packages = file.content["environment"], file.content["environment"]["packages"]
    return {
        "file": f"`{file.name}`",
        "command": f"`{file.content.get('command') or COMMANDS[file.benchmark]}`",
        "CPU": environment["cpu"],
        "device": environment["device"],
        "cores": f"{environment['threads']} of {environment['cores']}",
        "versions": ", ".join(f"{name} {packages[name]}" for name in VERSIONS if name in packages),
        "commit": str(environment["commit"]),
        "load at the end": f"{environment['load_1min']:.1f}",
    }


def write(sources: Sources, folder: Path) -> list[Path]:
    blocks = page(sources)
    contents = {"report.md": markdown(TITLE, blocks).encode(), "report.html": html(TITLE, blocks).encode()}
    for block in blocks:
        if isinstance(block, Picture):
            contents |= {f"{block.name}.png": block.png, f"{block.name}.svg": block.svg}
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]
