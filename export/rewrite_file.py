"""Rewrites any ONNX file into a cheaper file, proves that both answer alike, and writes it with manifest and sample.

In: a path and a request. Out: the files, and what was done as `Written`; or an error, and no file is written.
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
from export.compiler.graph.files import check_overwrites, release, save_model
from export.compiler.graph.input_defaults import LEAST_IR_VERSION, fixed_inputs
from export.compiler.graph.requested_output_parts import Read, resolve
from export.compiler.operators.contrib_demand_rules import is_integer, node_without_reference
from export.compiler.passes import PASSES
from export.compiler.pipeline import Rewritten, cost_sizes, prepared, rewrite
from export.compiler.proof.compare import Errors, Proof, Proved, prove
from export.compiler.proof.inputs import read_inputs
from export.compiler.proof.mask_meaning import hides_tokens
from export.compiler.proof.original_file import Original
from export.compiler.proof.rounds import RoundOptions, rounds
from export.compiler.proof.runner import Runner
from export.compiler.proof.unify_dimension_names import share_names
from export.publishing.foreign_artifact import session_artifact
from export.publishing.manifest import Origin
from export.publishing.sidecar import staged, write_contents
from export.time_files import Timed, time_both


@dataclass(frozen=True)
class Request:
    """What a rewrite, and a comparison of two files, is asked to do.

    `only`, `require`: passes that may run, and passes that must rewrite something. `time`: whether both files are
    timed. These three are for rewrites alone. `reads`: parts of the outputs that the user needs, such as
    "hidden[:,0]"; empty: all. `inputs`: an .npz file with inputs for the proof; `inputs_only`: no inputs are drawn.
    `dims`: sizes of free dimensions. `proof`: "float64" or "float32". `packed`: the input that masks padding tokens,
    which the rewritten file does not compute.
    """

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
    """What a rewrite did and wrote.

    `sizes`: of the free dimensions, at which costs are counted. `files`: model and weights: name -> bytes.
    `source_bytes`: of the original with its weights. `manifest`: as JSON.
    """

    rewritten: Rewritten
    proofs: tuple[Proof, ...]
    timed: tuple[Timed, ...]
    sizes: Mapping[str, int]
    files: Mapping[str, int]
    source_bytes: int
    manifest: dict[str, Any]


def rewrite_file(path: Path, output: Path, request: Request, say: Callable[[str], None] = lambda _: None) -> Written:
    """Rewrites the file at `path` into `output`. `say`: gets a line at every step. Raises ForeignError or OSError."""
    original = Original(path)
    try:
        return _rewrite(original, output, request, say)
    except NothingToRewrite:
        original.check_runs()  # the passes leave alone what they cannot read
        raise
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
    check_overwrites(output, [*original.files, *([request.inputs] if request.inputs else [])])
    dtype = original.dtype
    names = share_names(original, request.packed)
    request = replace(request, dims={names.get(name, name): size for name, size in request.dims.items()})
    hides = request.packed is not None and hides_tokens(original, request.packed)
    prepared_model = prepared(model)
    graph, sizes = prepared_model.model.graph, cost_sizes(prepared_model.model.graph, request.dims)
    rewritten = rewrite(prepared_model, reads, request.only, sizes, request.packed, hides)
    if missing := [name for name in request.require if name not in rewritten.applied]:
        refusals = [str(refusal) for step in rewritten.steps if step.name in missing for refusal in step.refusals]
        reasons = "; ".join(refusals[-3:]) or "nothing of its kind"
        raise NothingToRewrite(f"{missing[0]}: expected a place to rewrite, found none: {reasons}")
    proof_plan, reference = plan_proof(request, reads, original, graph, hides)
    if integer := any(map(is_integer, original.plain.graph)):
        proof_plan, reference = replace(proof_plan, as_written=True), "the original without ONNX Runtime's optimiser"
    not_compared: list[str] = []
    with staged(output) as written:
        say("writing the file")
        clean(rewritten.model, model, reads)
        save_model(rewritten.model, written)
        release(original.plain)  # its weights were needed to compute the new weights
        runner = _runner(written, original)
        errors = Errors(dtype, reference, quantised=integer)
        proof_rounds = rounds(original, graph, proof_plan, say, not_compared.append)
        proved = prove(proof_rounds, rewritten.model, runner, errors, say, not_compared.append)
        files = {file.name: file for file in sorted(written.parent.iterdir())}
        file_bytes = {name: file.stat().st_size for name, file in files.items()}
        sample = _sample(runner, proved)
        origin = describe(original, rewritten, proved, request, sizes)
        contents = {ONNX_FILE: files.pop(written.name), **files}
        artifact = session_artifact(contents, runner.session, sample, dtype, origin)
        artifact = artifact.with_origin({"not_compared": not_compared})
        del runner, original.runner  # both hold all weights
        timed = _timed(original.path, written, graph, sizes) if request.time else ()
        write_contents(written, artifact)
    manifest = json.loads(artifact.manifest.to_json())
    return Written(rewritten, proved.proofs, timed, sizes, file_bytes, original.size, manifest)


def _timed(path: Path, written: Path, graph: ir.Graph, sizes: Mapping[str, int]) -> tuple[Timed, ...]:
    """Times the original and the new file. Raises Slower if the new file is slower at any batch size."""
    timed = time_both(path, written, graph, sizes)
    if slower := [timing for timing in timed if timing.slower]:
        raise Slower(
            f"expected a file that is no slower than the original, found {slower[0]}; --only leaves passes out"
        )
    return timed


def _sample(runner: Runner, proved: Proved) -> Sample:
    """Inputs and outputs of the proof, without the inputs that have a default: Triton does not send these."""
    feeds = {value.name: proved.feeds[value.name] for value in runner.session.get_inputs()}
    return Sample(feeds, proved.answers if len(feeds) == len(proved.feeds) else runner(feeds))


def _runner(written: Path, original: Original) -> Runner:
    """Raises NotSupported; the message is about the original if ONNX Runtime refuses the original, too."""
    try:
        return Runner(written)
    except NotSupported as error:
        original.check_runs()
        reason = str(error).removeprefix(f"{written}: ")
        raise NotSupported(f"the rewritten file: {reason}") from error


def plan_proof(
    request: Request, reads: Sequence[Read], original: Original, graph: ir.Graph, hides: bool
) -> tuple[RoundOptions, str]:
    """What the proof runs the original on, and the name of the answers that a new file is compared with.

    `graph`: has the inputs that are drawn. `hides`: the mask is true for hidden tokens.
    """
    inputs = (request.inputs, read_inputs(request.inputs, graph)) if request.inputs else None
    if (node := node_without_reference(original.plain.graph)) is not None:
        reference = f"the original in ONNX Runtime, as {node.op_type} has no reference in float64"
    else:
        reference = "the original in float64" if request.proof == "float64" else "the original"
    double = node is None and request.proof == "float64"
    return RoundOptions(reads, request.dims, inputs, double, request.inputs_only, request.packed, hides), reference


def clean(model: ir.Model, original: ir.Model, reads: Sequence[Read]) -> ir.Model:
    """Drops the shapes and notes that the passes left in `model`, and returns it.

    Outputs get the shapes that `original` declares, unless `reads` takes only a part of them.
    """
    for node in model.graph:
        for value in node.outputs:
            value.metadata_props.clear()
            if not value.is_graph_output():
                value.shape = None
    declared = {value.name: value.shape for value in original.graph.outputs}
    unsliced = {read.output for read in reads if not read.indices} if reads else set(declared)
    for value in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
        if value.is_graph_output() and value.name in unsliced and declared[value.name] is not None:
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
    """What the manifest says about the rewrite. `sizes`: of the free dimensions, at which costs are counted."""
    import onnxruntime

    libraries = {name: version(name) for name in ("vitbn", "onnx", "onnx-ir", "onnx-shape-inference")}
    libraries |= {"onnxruntime": onnxruntime.__version__, "numpy": version("numpy")}  # or onnxruntime-gpu
    facts = {
        **source_facts(original, proved),
        "reads": list(request.reads),
        "fixed_inputs": fixed_inputs(original.model),
        "versions": libraries,
        "macs_at": dict(sizes),
        "macs": {"before": rewritten.macs, **{step.name: step.macs for step in rewritten.steps}},
        "macs_not_counted": list(rewritten.work.uncounted),
        "sites": {step.name: _places(step.sites, "change") for step in rewritten.steps},
        "refusals": {step.name: _places(step.refusals, "reason") for step in rewritten.steps},
    }
    return Origin(rewritten.applied, packed=request.packed, facts=facts)


def _places(sites: Sequence[Site], key: str) -> list[dict[str, str]]:
    """`key`: the name of the last field, "change" or "reason"."""
    return [{"value": site.value, "operator": site.operator, key: site.message} for site in sites]


def source_facts(original: Original, proved: Proved) -> dict[str, Any]:
    """What the manifest of a file says about its original and its proofs. Raises as `original.check_unchanged`."""
    hashes = {file.name: sha256(file) for file in original.files}
    original.check_unchanged()
    return {
        "source": {"file": original.path.name, "files": hashes, "opsets": dict(original.model.graph.opset_imports)},
        "proofs": [asdict(proof) for proof in proved.proofs],
        "proof_inputs": proved.source,
    }
