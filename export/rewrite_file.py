"""An ONNX file -> a proved ONNX file that multiplies less, with manifest and sample beside it.

In: a path and a request. Out: `Written`; or an error and nothing written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx_ir as ir

from common.files import sha256
from common.repository import ONNX_FILE
from common.sample import Sample
from export.compiler.errors import BadRequest, ForeignError, NothingToRewrite, NotSupported, Site, Slower
from export.compiler.graph.defaults import LEAST_IR_VERSION, fixed_inputs
from export.compiler.graph.files import check_apart, release, save_model
from export.compiler.graph.reads import Read, resolve
from export.compiler.operators.contrib import is_integer, without_double
from export.compiler.passes import PASSES
from export.compiler.pipeline import Rewritten, cost_sizes, prepared, rewrite
from export.compiler.proof.compare import Errors, Proof, Proved, prove
from export.compiler.proof.inputs import read_inputs
from export.compiler.proof.original import Original
from export.compiler.proof.rounds import Asked, rounds
from export.compiler.proof.runs import Runner
from export.compiler.proof.shared_axes import share_names
from export.publishing.foreign_artifact import any_artifact
from export.publishing.manifest import Origin
from export.publishing.sidecar import lay, staged
from export.time_files import Timed, time_both


@dataclass(frozen=True)
class Request:
    """Of the passes, `only`, `require` and `time` ask; the others are of the proof, and a comparison asks them too."""

    reads: Sequence[str] = ()
    only: Sequence[str] = PASSES
    require: Sequence[str] = ()
    inputs: Path | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    proof: str = "float64"
    time: bool = False
    inputs_only: bool = False
    packed: str | None = None


@dataclass(frozen=True)
class Written:
    rewritten: Rewritten
    proofs: tuple[Proof, ...]
    timed: tuple[Timed, ...]
    sizes: Mapping[str, int]
    files: Mapping[str, int]  # the model's own: name -> bytes
    before: int  # bytes of the source
    manifest: dict[str, Any]


def rewrite_file(path: Path, output: Path, request: Request, say: Callable[[str], None] = lambda _: None) -> Written:
    """`say` is told each step. Raises ForeignError or OSError."""
    original = Original(path)
    try:
        return _rewrite(original, output, request, say)
    except (ForeignError, OSError):
        raise
    except MemoryError as error:
        raise NotSupported("expected a graph that fits into memory, found one that needs more") from error
    except Exception as error:  # libraries fail in many ways on unknown graphs
        original.check_runs()  # a damaged graph has its reason in ONNX Runtime
        raise NotSupported(f"expected a graph that the passes read, found {type(error).__name__} in it") from error


def _rewrite(original: Original, output: Path, request: Request, say: Callable[[str], None]) -> Written:
    say("rewriting the graph")
    model = original.model
    reads = resolve(request.reads, model.graph)
    if outside := [name for name in request.require if name not in request.only]:
        raise BadRequest(f"require: expected passes that run ({', '.join(request.only)}), found {outside[0]!r}")
    check_apart(output, [*original.files, *([request.inputs] if request.inputs else [])])
    dtype = original.dtype
    if request.packed is not None:
        share_names(original, request.packed)
    whole = prepared(model)
    graph, sizes = whole.model.graph, cost_sizes(whole.model.graph, request.dims)
    rewritten = rewrite(whole, reads, request.only, sizes, request.packed)
    if missing := [name for name in request.require if name not in rewritten.applied]:
        refusals = [str(refusal) for step in rewritten.steps if step.name in missing for refusal in step.refusals]
        reasons = "; ".join(refusals[-3:]) or "nothing of its kind"
        raise NothingToRewrite(f"{missing[0]}: expected a place to rewrite, found none: {reasons}")
    asked, beside = asked_of(request, reads, original, graph)
    if integer := any(map(is_integer, original.plain.graph)):
        asked, beside = replace(asked, as_written=True), "the original without ONNX Runtime's optimiser"
    left: list[str] = []
    with staged(output) as written:
        say("writing the file")
        clean(rewritten.model, model, reads)
        save_model(rewritten.model, written)
        release(original.plain)  # computed weights have read the original's
        runner = _runner(written, original)
        own = Errors(dtype, beside, bounded=not integer)
        drawn = rounds(original, graph, asked, say, left.append)
        proved = prove(drawn, rewritten.model, runner, own, say, left.append)
        files = {file.name: file for file in sorted(written.parent.iterdir())}
        sizes_of_files = {name: file.stat().st_size for name, file in files.items()}
        sample = _sample(runner, proved)
        origin = describe(original, rewritten, proved, request, sizes)
        contents = {ONNX_FILE: files.pop(written.name), **files}
        artifact = any_artifact(contents, runner.session, sample, dtype, origin)
        artifact = artifact.telling({"not_compared": left})
        del runner, original.runner  # each holds all weights
        timed = _timed(original.path, written, graph, sizes) if request.time else ()
        lay(written, artifact)
    manifest = json.loads(artifact.manifest.to_json())
    return Written(rewritten, proved.proofs, timed, sizes, sizes_of_files, original.size, manifest)


def _timed(path: Path, written: Path, graph: ir.Graph, sizes: Mapping[str, int]) -> tuple[Timed, ...]:
    """Raises Slower."""
    timed = time_both(path, written, graph, sizes)
    if slower := [each for each in timed if each.slower]:
        raise Slower(
            f"expected a file that is no slower than the original, found {slower[0]}; --only leaves passes out"
        )
    return timed


def _sample(runner: Runner, proved: Proved) -> Sample:
    """Of the inputs that have no default."""
    feeds = {value.name: proved.feeds[value.name] for value in runner.session.get_inputs()}
    return Sample(feeds, proved.answers if len(feeds) == len(proved.feeds) else runner(feeds))


def _runner(written: Path, original: Original) -> Runner:
    """Raises NotSupported, for the original if ONNX Runtime refuses that too."""
    try:
        return Runner(written)
    except NotSupported:
        original.check_runs()
        raise


def asked_of(request: Request, reads: Sequence[Read], original: Original, graph: ir.Graph) -> tuple[Asked, str]:
    """What the proof asks of the original, and beside what it judges a file. `graph`: to draw inputs."""
    inputs = (request.inputs, read_inputs(request.inputs, graph)) if request.inputs else None
    if (without := without_double(original.plain.graph)) is not None:
        beside = f"the original in ONNX Runtime, as {without.op_type} has no reference in float64"
    else:
        beside = "the original in float64" if request.proof == "float64" else "the original"
    double = without is None and request.proof == "float64"
    return Asked(reads, request.dims, inputs, double, request.inputs_only, request.packed), beside


def clean(model: ir.Model, original: ir.Model, reads: Sequence[Read]) -> ir.Model:
    """Drops inferred shapes and notes; restores the outputs' declared shapes."""
    for node in model.graph:
        for value in node.outputs:
            value.metadata_props.clear()
            if not value.is_graph_output():
                value.shape = None
    declared = {value.name: value.shape for value in original.graph.outputs}
    whole = {read.output for read in reads if not read.indices} if reads else set(declared)
    for value in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
        if value.is_graph_output() and value.name in whole and declared[value.name] is not None:
            value.shape = declared[value.name]
    model.ir_version = max(model.ir_version, LEAST_IR_VERSION)
    model.metadata_props["vitbn.rewritten"] = version("vitbn")
    return model


def describe(
    original: Original,
    rewritten: Rewritten,
    proved: Proved,
    request: Request,
    sizes: Mapping[str, int],
) -> Origin:
    libraries = ("vitbn", "onnx", "onnx-ir", "onnx-shape-inference", "onnxruntime", "numpy")
    facts = {
        **source_facts(original, proved),
        "reads": list(request.reads),
        "fixed_inputs": fixed_inputs(original.model),
        "versions": {name: version(name) for name in libraries},
        "macs_at": dict(sizes),
        "macs": {"before": rewritten.macs, **{step.name: step.macs for step in rewritten.steps}},
        "macs_not_counted": list(rewritten.work.uncounted),
        "sites": {step.name: _places(step.sites, "change") for step in rewritten.steps},
        "refusals": {step.name: _places(step.refusals, "reason") for step in rewritten.steps},
    }
    return Origin(rewritten.applied, packed=request.packed, facts=facts)


def _places(sites: Sequence[Site], told: str) -> list[dict[str, str]]:
    return [{"value": site.value, "operator": site.operator, told: site.told} for site in sites]


def source_facts(original: Original, proved: Proved) -> dict[str, Any]:
    """The file that a proved file was made of, and its proofs."""
    hashes = {file.name: sha256(file) for file in original.files}
    return {
        "source": {"file": original.path.name, "files": hashes, "opsets": dict(original.model.graph.opset_imports)},
        "proofs": [asdict(proof) for proof in proved.proofs],
        "proof_inputs": proved.source,
    }
