"""Makes an `Artifact` of any ONNX classifier of pictures, which clients ask like a network of this project.

In: a file, its processor, and the names of its classes. Out: `MadeArtifact`; or an ExportError. The compiler's passes
fold the processor's numbers into the first linear layer and rewrite the other layers. If they do not apply, the network
stays as it is, after Cast, Mul and Add, and `not_rewritten` says why.
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
from export.compiler.graph.def_use import only_reader
from export.compiler.graph.files import weight_bytes
from export.compiler.pipeline import Rewritten, cost_sizes, optimise, prepared
from export.compiler.proof.compare import Proof, Proved
from export.compiler.proof.original_file import Original
from export.errors import PublishError
from export.pictures.processor import Processor
from export.pictures.proof import Source, prove_bytes, ramps
from export.pictures.uint8_input import Interface, interface, with_uint8_input
from export.publishing.artifact import Artifact, onnx_artifact
from export.publishing.manifest import Network, Origin
from export.publishing.picture_config import PictureConfig
from export.rewrite_file import clean, source_facts
from models.networks.config import OUTPUT_NAME, ConfigError

LARGEST = 2_000_000_000  # bytes of weights; a protobuf file takes no more
NORMALISING = ("Cast", "Gather", "Mul", "Add")
SUM_TOLERANCE = 1e-3  # scores that are positive and sum to 1 within this are probabilities


@dataclass(frozen=True)
class MadeArtifact:
    """An artifact and what was done for it.

    `rewritten`: None if no pass ran; then `not_rewritten` says why. `normalising`: operators that still normalise
    before the first layer; None for a network that reads bytes.
    """

    artifact: Artifact
    rewritten: Rewritten | None
    proofs: tuple[Proof, ...]
    normalising: tuple[str, ...] | None
    not_rewritten: str


def make_picture_artifact(
    file: Path,
    choose: Callable[[Interface], Processor],
    labels: Sequence[str] | None,
    temperature: float | None = None,
) -> MadeArtifact:
    """Makes the artifact of the network in `file`.

    `choose`: returns the processor for the network's interface. `labels`: by default "class 0" and so on.
    `temperature`: divides the logits. Raises ExportError or OSError.
    """
    original = Original(file)
    try:
        return _make(original, choose, labels, temperature)
    except (PublishError, OSError):
        raise
    except ForeignError as error:  # its hint names options of `vitbn rewrite`
        raise type(error)(error.reason) from error
    except ConfigError as error:  # of the labels
        raise PublishError(f"--{error}") from error
    except Exception as error:  # libraries fail in many ways on unknown graphs
        original.check_runs()  # a damaged graph has its reason in ONNX Runtime
        raise PublishError(f"{file}: expected a graph that can be read, found {type(error).__name__} in it") from error


def _make(
    original: Original,
    choose: Callable[[Interface], Processor],
    labels: Sequence[str] | None,
    temperature: float | None,
) -> MadeArtifact:
    file, plain = original.path, original.plain
    if "model_config" in original.model.metadata_props:
        raise PublishError(f"{file}: expected a network of another origin, found ours: publish it without --pictures")
    if (size := weight_bytes(plain)) > LARGEST:
        raise PublishError(f"{file}: expected at most {LARGEST / 1e9:g} GB of weights, found {size / 1e9:.1f} GB")
    network = _interface(file, plain, labels is not None)
    processor = choose(network)
    _check_fits(file, processor, network)
    wrapped = with_uint8_input(plain, processor, labels is not None)
    with TemporaryDirectory() as folder:
        source = Source(original, network, processor, Path(folder))
        model, rewritten, proved, not_rewritten = _rewritten(source, wrapped, original.dtype)
        proto = onnx.load(source.served)  # includes weights in files next to it
    scores = np.asarray(proved.answers[OUTPUT_NAME])
    _check_scores(file, scores)
    names = _names(file, labels, scores.shape[1])
    config = PictureConfig(processor.size, network.channels, names, processor.framing)
    proof = proved.proofs[-1]
    largest = float(np.abs(scores).max())
    manifest_network = Network(config, sha256(file), {}, proof.error * largest, proof.tolerance * largest, temperature)
    origin = Origin(
        rewritten.applied if rewritten else (),
        "fp32" if original.dtype == "float32" else "fp16",
        facts={
            **source_facts(original, proved),
            "processor": asdict(processor),
            **({"not_rewritten": not_rewritten} if not_rewritten else {}),
        },
    )
    image = ramps(config.input_shape)[np.newaxis]
    artifact = onnx_artifact(_with_interface(proto, len(names)), image, manifest_network, origin)
    normalising = None if network.reads_bytes else _normalising(model)
    return MadeArtifact(artifact, rewritten, proved.proofs, normalising, not_rewritten)


def _interface(file: Path, plain: ir.Model, named: bool) -> Interface:
    """As `interface`, whose errors get the file's name."""
    try:
        return interface(plain, named)
    except PublishError as error:
        raise PublishError(f"{file}: {error}") from error


def _rewritten(source: Source, wrapped: ir.Model, dtype: str) -> tuple[ir.Model, Rewritten | None, Proved, str]:
    """The proved model, rewritten if that can be done and proved; and why it was not. `dtype`: of the original."""
    try:
        ready = prepared(wrapped)
        rewritten = optimise(ready, sizes=cost_sizes(ready.model.graph, {}))
        proved = prove_bytes(source, clean(rewritten.model, wrapped, ()), dtype, True)
        return rewritten.model, rewritten, proved, ""
    except ForeignError as error:
        return wrapped, None, prove_bytes(source, wrapped, dtype, False), error.reason


def _check_fits(file: Path, processor: Processor, network: Interface) -> None:
    """Raises PublishError if the processor makes other pictures than the network takes."""
    for numbers in (processor.mean, processor.std):
        if len(numbers) not in (1, network.channels) and len(set(numbers)) > 1:
            raise PublishError(f"{file}: expected numbers for {network.channels} channels, found {len(numbers)}")
    if processor.bgr and network.reads_bytes:
        raise PublishError(f"{file}: expected no do_flip_channel_order beside a network that reads bytes")
    if processor.bgr and network.channels != 3:
        raise PublishError(f"{file}: expected three channels to flip, found {network.channels}")
    if network.size not in (None, processor.size):
        made, wanted = (f"{width}x{height}" for height, width in (processor.size, network.size or processor.size))
        hint = "--mean, --std, --crop and --resize say it without --processor"
        raise PublishError(f"{file}: expected a processor for the network's {wanted} pixels, found {made}; {hint}")


def _names(file: Path, labels: Sequence[str] | None, classes: int) -> tuple[str, ...]:
    if labels is not None and len(labels) != classes:
        raise PublishError(f"--labels: expected {classes} names, as {file} has {classes} classes, found {len(labels)}")
    names = labels or [f"class {number}" for number in range(classes)]
    # ImageNet has two classes "crane".
    return tuple(f"{name} ({number})" if names.count(name) > 1 else name for number, name in enumerate(names))


def _check_scores(file: Path, scores: object) -> None:
    """Raises PublishError for another rank than two, for a single class, and for probabilities."""
    array = np.asarray(scores)
    if array.ndim != 2 or array.shape[1] < 2:
        raise PublishError(f"{file}: expected scores of two classes or more (batch, classes), found {array.shape}")
    if (array >= 0).all() and np.abs(array.sum(1) - 1).max() < SUM_TOLERANCE:
        raise PublishError(f"{file}: expected scores before the softmax, found probabilities")


def _with_interface(proto: onnx.ModelProto, classes: int) -> onnx.ModelProto:
    """Drops the notes of the original's exporter, and declares the shape of the output: (batch, classes)."""
    del proto.metadata_props[:]
    batch = proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    shape = proto.graph.output[0].type.tensor_type.shape
    del shape.dim[:]
    shape.dim.add(dim_param=batch)
    shape.dim.add(dim_value=classes)
    return proto


def _normalising(model: ir.Model) -> tuple[str, ...]:
    """The Mul and Add between the input and the network's first layer, by name of the operator."""
    value, names = model.graph.inputs[0], list[str]()
    while (node := only_reader(value)) is not None and node.op_type in NORMALISING:
        names.append(node.op_type)
        value = node.outputs[0]
    return tuple(name for name in names if name in ("Mul", "Add"))
