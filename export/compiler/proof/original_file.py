"""An ONNX file as the user gave it, to be rewritten, compared or published.

In: a path. Out: an `Original`, which reads the file once and opens it once in ONNX Runtime, when first needed. The
model stays as it was read.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import onnx_ir as ir

from export.compiler.errors import BadRequest, NotSupported
from export.compiler.graph.embedded_weights import LARGE
from export.compiler.graph.files import read_model, weight_files
from export.compiler.graph.inline_functions import without_functions
from export.compiler.proof.runner import Runner


class Original:
    """`files`: the file and those of its weights; `size`: the bytes of all. Raises as `read_model`."""

    def __init__(self, path: Path) -> None:
        before = _state(path) if path.exists() else None
        self.path, self.model = path, read_model(path)
        self.files = (path, *weight_files(self.model))
        self.size = sum(file.stat().st_size for file in self.files)
        self._states = {file: before if file == path else _state(file) for file in self.files}

    def check_unchanged(self) -> None:
        """Raises BadRequest if a file is no longer the file that was read: model, session and hashes would differ."""
        for file, state in self._states.items():
            if not file.exists() or _state(file) != state:
                raise BadRequest(f"{file}: expected a file that stays as it is, found that it changed meanwhile")

    @property
    def dtype(self) -> str:
        """Selects the proof's tolerance: "float16" if any weight is float16.

        Raises NotSupported for bfloat16, unless only a Cast reads it.
        """
        weights = self.model.graph.initializers.values()
        for value in weights:
            if value.dtype == ir.DataType.BFLOAT16 and any(node.op_type != "Cast" for node in value.consumers()):
                found = "found bfloat16, which ONNX Runtime runs on no CPU"
                raise NotSupported(f"weights: expected float32 or float16, {found}")
        return "float16" if any(value.dtype == ir.DataType.FLOAT16 for value in weights) else "float32"

    def check_runs(self) -> None:
        """Raises NotSupported if ONNX Runtime refuses the file."""
        _ = self.runner

    @cached_property
    def plain(self) -> ir.Model:
        """The model with its functions inlined, as the evaluation in float64 needs it."""
        return without_functions(self.model)

    @cached_property
    def runner(self) -> Runner:
        """ONNX Runtime's session, which holds the weights until `del original.runner`.

        Raises as `check_runs` and `check_unchanged`.
        """
        runner = Runner(self.path, large=self.size > LARGE)
        self.check_unchanged()
        return runner


def _state(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
