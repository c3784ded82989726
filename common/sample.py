"""sample.npz beside every model: inputs, and the outputs that the model's file gave for them when it was published."""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.files import reason
from common.repository import Damaged

Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Sample:
    """Arrays by the names of the model's tensors."""

    inputs: Arrays
    outputs: Arrays

    def to_bytes(self) -> bytes:
        """The content of sample.npz; equal arrays give equal bytes."""
        named = {f"in:{name}": array for name, array in self.inputs.items()}
        named |= {f"out:{name}": array for name, array in self.outputs.items()}
        file = io.BytesIO()
        np.savez_compressed(file, **named)
        return file.getvalue()

    @classmethod
    def read(cls, content: bytes | Path) -> Sample:
        """Raises Damaged."""
        where = content if isinstance(content, Path) else "sample"
        try:
            data = io.BytesIO(content if isinstance(content, bytes) else content.read_bytes())
            with np.load(data, allow_pickle=False) as held:
                arrays = {name: held[name] for name in held.files}
        except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
            raise Damaged(where, "the sample of a model", reason(error)) from error
        parts = [
            {name.removeprefix(part): array for name, array in arrays.items() if name.startswith(part)}
            for part in ("in:", "out:")
        ]
        return cls(*parts)


def is_sample(file: Path) -> bool:
    """Whether the file is a sample, judged by its arrays' names alone."""
    try:
        with zipfile.ZipFile(file) as held:
            return bool(held.namelist()) and all(name.startswith(("in:", "out:")) for name in held.namelist())
    except (OSError, zipfile.BadZipFile):
        return False
