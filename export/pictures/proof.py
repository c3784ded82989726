"""Proves that a network behind bytes answers as its original does to a processor's floats.

In: the original file and graph, and the new graph. Out: `Proved`, against the original in float64 and in its own
precision, for one, two and three drawn pictures; or an ExportError. The normalisation of the reference is numpy's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.compiler.errors import NotSupported
from export.compiler.graph.files import save_model
from export.compiler.proof.compare import Errors, Proved, prove
from export.compiler.proof.inputs import Feeds
from export.compiler.proof.original import Original
from export.compiler.proof.rounds import Round
from export.compiler.proof.runs import Arrays, Runner, double_answers
from export.compiler.proof.tolerances import relative_error
from export.errors import PublishError
from export.pictures.processor import Processor
from export.pictures.uint8_input import FIRST_TO_LAST, Interface
from models.networks.config import INPUT_NAME

BATCHES = (1, 2, 3)
ALONE = 1e-3  # of the scores, by which rounding may move a picture's beside others

Images = NDArray[np.uint8]


@dataclass(frozen=True)
class Source:
    """`folder`: for files in between."""

    original: Original
    found: Interface
    processor: Processor
    folder: Path

    def rounds(self, double: bool, say: Callable[[str], None]) -> Iterator[Round]:
        """Raises PublishError if the network does not take every batch, or answers otherwise in it."""
        alone: Arrays = []
        for size in BATCHES:
            images = drawn((self.found.channels, *self.processor.size), size)
            say(f"the original, {size} pictures")
            try:
                answers = self._runner(self._feeds(images, np.float32))[str(self._scores.graph.outputs[0].name)]
            except NotSupported as error:
                raise PublishError(
                    f"{self.original.path}: expected a network that takes {size} pictures at once: {error}"
                ) from error
            alone = alone or [answers]
            if answers.shape[:1] != (size,) or not relative_error(alone[0][:1], answers[:1]) <= ALONE:
                what = "answers that do not depend on the other pictures of a batch"
                raise PublishError(
                    f"{self.original.path}: expected {what}, found others; was it exported in eval mode?"
                )
            exact = double_answers(self._scores, self._feeds(images, np.float64)) if double else None
            yield Round(f"{size} drawn pictures", {INPUT_NAME: images}, [answers], exact)

    def _feeds(self, images: Images, dtype: type[np.floating[Any]]) -> Feeds:
        half = self.found.given.dtype == ir.DataType.FLOAT16 and dtype is np.float32
        given: NDArray[np.generic] = images
        if not self.found.reads_bytes:
            given = self.processor.apply(images, dtype).astype(np.float16 if half else dtype)
        return {str(self.found.given.name): given.transpose(FIRST_TO_LAST) if self.found.channels_last else given}

    @property
    def served(self) -> Path:
        """The file that was proved last."""
        return self.folder / "served.onnx"

    @cached_property
    def _scores(self) -> ir.Model:
        """The original with its scores as the only output."""
        model = self.original.plain.clone()
        names = {value.name: value for node in model.graph for value in node.outputs}
        scores = names[self.found.scores.name]
        scores.type = scores.type or ir.TensorType(ir.DataType.FLOAT)
        model.graph.outputs[:] = [scores]
        return model

    @cached_property
    def _runner(self) -> Runner:
        if any(value is self.found.scores for value in self.original.plain.graph.outputs):
            return self.original.runner
        path = self.folder / "scores.onnx"
        save_model(self._scores.clone(), path)
        return Runner(path)


def prove_bytes(source: Source, model: ir.Model, dtype: str, double: bool, say: Callable[[str], None]) -> Proved:
    """`double`: in float64, too. Raises ProofFailed, NotSupported or PublishError."""
    save_model(model, source.served)
    own = Errors(dtype, "the original in float64" if double else "the original")
    return prove(source.rounds(double, say), model if double else None, Runner(source.served), own, say)


def smooth(shape: tuple[int, int, int]) -> Images:
    """Ramps, which a config holds in few bytes: uint8 (C, H, W)."""
    channels, rows, columns = np.ogrid[: shape[0], : shape[1], : shape[2]]
    return np.asarray((80 * channels + 2 * rows + 3 * columns) % 256, np.uint8)


def drawn(shape: tuple[int, int, int], count: int) -> Images:
    """The ramps, then noise."""
    noise = np.random.default_rng(count).integers(0, 256, (count - 1, *shape), np.uint8)
    return np.concatenate((smooth(shape)[np.newaxis], noise))
