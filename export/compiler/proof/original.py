"""A file that is rewritten, compared or published; nothing changes it.

In: a path. Out: `Original`, whom its readers ask: the file is read once, and opened once in ONNX Runtime.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import onnx_ir as ir

from export.compiler.graph.files import dtype_of, read_model, weight_files
from export.compiler.graph.inline_functions import without_functions
from export.compiler.graph.inline_weights import LARGE
from export.compiler.proof.runner import Runner


class Original:
    """`files`: it and those of its weights; `size`: their bytes. Raises as `read_model`."""

    def __init__(self, path: Path) -> None:
        self.path, self.model = path, read_model(path)
        self.files = (path, *weight_files(self.model))
        self.size = sum(file.stat().st_size for file in self.files)

    @property
    def dtype(self) -> str:
        """Raises NotSupported."""
        return dtype_of(self.model)

    def check_runs(self) -> None:
        """Raises NotSupported if ONNX Runtime refuses the file."""
        _ = self.runner

    @cached_property
    def plain(self) -> ir.Model:
        """The model without functions, for float64."""
        return without_functions(self.model)

    @cached_property
    def runner(self) -> Runner:
        """Holds the weights until it is deleted. Raises as `check_runs`."""
        return Runner(self.path, large=self.size > LARGE)
