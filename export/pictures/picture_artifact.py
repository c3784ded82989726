"""Another's ONNX network of pictures -> an `Artifact` that clients ask as a network of this project.

In: a file, how it wants its pictures, and the classes' names. Out: `Made`; or an ExportError and nothing written. The
compiler's passes fold the processor's numbers into the first linear layer and rewrite the rest. Where they do not
apply, the network stays as it is behind Cast, Mul and Add, and `left` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnx_ir as ir

from common.files import sha256
from export.compiler.errors import ForeignError
from export.compiler.graph.attributes import reads_shape_alone
from export.compiler.graph.files import weight_bytes
from export.compiler.pipeline import Rewritten, cost_sizes, optimise, prepared
from export.compiler.proof.compare import Proof, Proved
from export.compiler.proof.original import Original
from export.errors import PublishError
from export.pictures.processor import Processor
from export.pictures.proof import Source, prove_bytes, smooth
from export.pictures.uint8_input import Interface, behind_bytes, interface
from export.publishing.artifact import Artifact, onnx_artifact
from export.publishing.manifest import Network, Origin
from export.publishing.picture_config import PictureConfig
from export.rewrite_file import clean, source_facts
from models.networks.config import OUTPUT_NAME, ConfigError

LARGEST = 2_000_000_000  # bytes of weights that a file holds
NORMALISING = ("Cast", "Gather", "Mul", "Add")
SUM_TOLERANCE = 1e-3  # of the rows of probabilities

Say = Callable[[str], None]


@dataclass(frozen=True)
class Made:
    """`normalises`: the nodes that still do so before the network; None: it reads bytes. `left`: why no pass ran."""

    artifact: Artifact
    rewritten: Rewritten | None
    proofs: tuple[Proof, ...]
    normalises: tuple[str, ...] | None
    left: str


def make(
    file: Path,
    choose: Callable[[Interface], Processor],
    labels: Sequence[str] | None,
    temperature: float | None = None,
    say: Say = lambda _: None,
) -> Made:
    """`choose` gets the network's interface. `labels`: default "class 0" and so on. Raises ExportError."""
    original = Original(file)
    try:
        return _make(original, choose, labels, temperature, say)
    except (PublishError, OSError):
        raise
    except ForeignError as error:  # its hints are another command's
        raise type(error)(error.reason) from error
    except ConfigError as error:
        raise PublishError(f"{file}: {error}") from error
    except Exception as error:  # libraries fail in many ways on unknown graphs
        original.check_runs()  # a damaged graph has its reason in ONNX Runtime
        raise PublishError(f"{file}: expected a graph that can be read, found {type(error).__name__} in it") from error


def _make(
    original: Original,
    choose: Callable[[Interface], Processor],
    labels: Sequence[str] | None,
    temperature: float | None,
    say: Say,
) -> Made:
    file, plain = original.path, original.plain
    if "model_config" in original.model.metadata_props:
        raise PublishError(f"{file}: expected a network of another origin, found ours: publish it without --pictures")
    if (size := weight_bytes(plain)) > LARGEST:
        raise PublishError(f"{file}: expected at most {LARGEST / 1e9:g} GB of weights, found {size / 1e9:.1f} GB")
    found = _interface(file, plain, labels is not None)
    processor = choose(found)
    _check_fits(file, processor, found)
    wrapped = behind_bytes(plain, processor, labels is not None)
    with TemporaryDirectory() as folder:
        source = Source(original, found, processor, Path(folder))
        model, rewritten, proved, left = _proved(source, wrapped, original.dtype, say)
        proto = onnx.load(source.served)  # with the weights of files beside it
    scores = np.asarray(proved.answers[OUTPUT_NAME])
    _check_scores(file, scores)
    names = _names(file, labels, scores.shape[1])
    config = PictureConfig(processor.size, found.channels, names, processor.framing)
    proof = proved.proofs[-1]
    largest = float(np.abs(scores).max())
    network = Network(config, sha256(file), {}, proof.error * largest, proof.tolerance * largest, temperature)
    origin = Origin(
        rewritten.applied if rewritten else (),
        "fp32" if original.dtype == "float32" else "fp16",
        facts={
            **source_facts(original, proved),
            "processor": asdict(processor),
            **({"not_rewritten": left} if left else {}),
        },
    )
    artifact = onnx_artifact(_described(proto, len(names)), smooth(config.input_shape)[np.newaxis], network, origin)
    return Made(artifact, rewritten, proved.proofs, None if found.reads_bytes else _normalises(model), left)


def _interface(file: Path, plain: ir.Model, named: bool) -> Interface:
    try:
        return interface(plain, named)
    except PublishError as error:
        raise PublishError(f"{file}: {error}") from error


def _proved(source: Source, wrapped: ir.Model, dtype: str, say: Say) -> tuple[ir.Model, Rewritten | None, Proved, str]:
    """The model that is served, and why the passes did not change it."""
    try:
        say("rewriting the graph")
        ready = prepared(wrapped)
        rewritten = optimise(ready, sizes=cost_sizes(ready.model.graph, {}))
        proved = prove_bytes(source, clean(rewritten.model, wrapped, ()), dtype, True, say)
        return rewritten.model, rewritten, proved, ""
    except ForeignError as error:
        return wrapped, None, prove_bytes(source, wrapped, dtype, False, say), error.reason


def _check_fits(file: Path, processor: Processor, found: Interface) -> None:
    """Raises PublishError if the processor makes other pictures than the network takes."""
    for numbers in (processor.mean, processor.std):
        if len(numbers) not in (1, found.channels) and len(set(numbers)) > 1:
            raise PublishError(f"{file}: expected numbers for {found.channels} channels, found {len(numbers)}")
    if processor.bgr and found.reads_bytes:
        raise PublishError(f"{file}: expected no do_flip_channel_order beside a network that reads bytes")
    if processor.bgr and found.channels != 3:
        raise PublishError(f"{file}: expected three channels to flip, found {found.channels}")
    if found.size not in (None, processor.size):
        made, taken = (f"{width}x{height}" for height, width in (processor.size, found.size or processor.size))
        hint = "--mean, --std, --crop and --resize say it without --processor"
        raise PublishError(f"{file}: expected a processor for the network's {taken} pixels, found {made}; {hint}")


def _names(file: Path, labels: Sequence[str] | None, classes: int) -> tuple[str, ...]:
    if labels is not None and len(labels) != classes:
        raise PublishError(f"--labels: expected {classes} names, as {file} has {classes} classes, found {len(labels)}")
    given = labels or [f"class {number}" for number in range(classes)]
    # ImageNet has two cranes.
    return tuple(f"{name} ({number})" if given.count(name) > 1 else name for number, name in enumerate(given))


def _check_scores(file: Path, scores: object) -> None:
    """Raises PublishError for another rank than two, for a single class, and for probabilities."""
    array = np.asarray(scores)
    if array.ndim != 2 or array.shape[1] < 2:
        raise PublishError(f"{file}: expected scores of two classes or more (batch, classes), found {array.shape}")
    if (array >= 0).all() and np.abs(array.sum(1) - 1).max() < SUM_TOLERANCE:
        raise PublishError(f"{file}: expected scores before the softmax, found probabilities")


def _described(proto: onnx.ModelProto, classes: int) -> onnx.ModelProto:
    del proto.metadata_props[:]  # of its origin
    batch = proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    shape = proto.graph.output[0].type.tensor_type.shape
    del shape.dim[:]
    shape.dim.add(dim_param=batch)
    shape.dim.add(dim_value=classes)
    return proto


def _normalises(model: ir.Model) -> tuple[str, ...]:
    """The arithmetic between the bytes and the network."""
    value, nodes = model.graph.inputs[0], list[str]()
    while len(readers := [use.node for use in value.uses() if not reads_shape_alone(use.node)]) == 1:
        if readers[0].op_type not in NORMALISING:
            break
        nodes.append(readers[0].op_type)
        value = readers[0].outputs[0]
    return tuple(name for name in nodes if name in ("Mul", "Add"))
