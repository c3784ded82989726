"""Proves that a network with uint8 input answers as its original does to the floats of a processor.

In: the original file, and the new graph. Out: `Proved`, for batches of one, two and three drawn pictures; or an
ExportError. The reference normalises with numpy, and runs the original in its own precision and in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from common.plurals import counted
from export.compiler.errors import NotSupported
from export.compiler.graph.files import save_model
from export.compiler.proof.compare import Errors, Proved, prove
from export.compiler.proof.inputs import Feeds
from export.compiler.proof.original_file import Original
from export.compiler.proof.rounds import Round
from export.compiler.proof.runner import Arrays, Runner, double_answers
from export.compiler.proof.tolerances import relative_error
from export.errors import PublishError
from export.pictures.processor import Processor
from export.pictures.uint8_input import FIRST_TO_LAST, Interface
from models.networks.config import INPUT_NAME

BATCHES = (1, 2, 3)
ALONE = 1e-3  # relative to the scores: rounding may move a picture's scores so far if the batch has other pictures

Images = NDArray[np.uint8]


@dataclass(frozen=True)
class Source:
    """The original of a proof. `folder`: for temporary files."""

    original: Original
    network: Interface
    processor: Processor
    folder: Path

    def rounds(self, double: bool) -> Iterator[Round]:
        """The original's answers to each batch, with those in float64 if `double`.

        Raises PublishError if the network refuses a batch, or a picture's scores depend on the other pictures in it.
        """
        alone: Arrays = []
        for size in BATCHES:
            images = drawn_pictures((self.network.channels, *self.processor.size), size)
            try:
                answers = self._runner(self._feeds(images, np.float32))[str(self._scores.graph.outputs[0].name)]
            except NotSupported as error:
                expected = f"a network that takes {counted(size, 'picture')} at once"
                raise PublishError(f"{self.original.path}: expected {expected}: {error}") from error
            alone = alone or [answers]
            if answers.shape[:1] != (size,) or not relative_error(alone[0][:1], answers[:1]) <= ALONE:
                expected = "answers that do not depend on the other pictures of a batch"
                raise PublishError(
                    f"{self.original.path}: expected {expected}, found others; was it exported in eval mode?"
                )
            exact = double_answers(self._scores, self._feeds(images, np.float64)) if double else None
            yield Round(counted(size, "drawn picture"), {INPUT_NAME: images}, [answers], exact)

    def _feeds(self, images: Images, dtype: type[np.floating[Any]]) -> Feeds:
        """What the original reads for `images`, normalised in `dtype`."""
        half = self.network.pictures.dtype == ir.DataType.FLOAT16 and dtype is np.float32
        pixels: NDArray[np.generic] = images
        if not self.network.reads_bytes:
            pixels = self.processor.apply(images, dtype).astype(np.float16 if half else dtype)
        if self.network.channels_last:
            pixels = pixels.transpose(FIRST_TO_LAST)
        return {str(self.network.pictures.name): pixels}

    @property
    def served(self) -> Path:
        """The path of the file with uint8 input that was proved last."""
        return self.folder / "served.onnx"

    @cached_property
    def _scores(self) -> ir.Model:
        """The original with its scores as the only output."""
        model = self.original.plain.clone()
        names = {value.name: value for node in model.graph for value in node.outputs}
        scores = names[self.network.scores.name]
        scores.type = scores.type or ir.TensorType(ir.DataType.FLOAT)
        model.graph.outputs[:] = [scores]
        return model

    @cached_property
    def _runner(self) -> Runner:
        """Runs `_scores` in ONNX Runtime."""
        if any(value is self.network.scores for value in self.original.plain.graph.outputs):
            return self.original.runner
        path = self.folder / "scores.onnx"
        save_model(self._scores.clone(), path)
        return Runner(path)


def prove_bytes(source: Source, model: ir.Model, dtype: str, double: bool) -> Proved:
    """Writes `model`, the graph with uint8 input, to `source.served` and proves it.

    `dtype`: of the original. `double`: also compares in float64. Raises ProofFailed, NotSupported or PublishError.
    """
    save_model(model, source.served)
    errors = Errors(dtype, "the original in float64" if double else "the original")
    return prove(source.rounds(double), model if double else None, Runner(source.served), errors)


def ramps(shape: tuple[int, int, int]) -> Images:
    """A picture of ramps, which compresses to the few bytes that config.pbtxt can hold: uint8 (C, H, W)."""
    channels, rows, columns = np.ogrid[: shape[0], : shape[1], : shape[2]]
    return np.asarray((80 * channels + 2 * rows + 3 * columns) % 256, np.uint8)


def drawn_pictures(shape: tuple[int, int, int], count: int) -> Images:
    """Ramps and `count` - 1 pictures of noise: uint8 (count, C, H, W)."""
    noise = np.random.default_rng(count).integers(0, 256, (count - 1, *shape), np.uint8)
    return np.concatenate((ramps(shape)[np.newaxis], noise))
