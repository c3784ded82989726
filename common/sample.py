"""sample.npz of a published version: inputs, and the outputs that the model computed from them at its publication."""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.files import reason, regular
from common.repository import Damaged

Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Sample:
    """Inputs and outputs: name of the model's tensor -> array."""

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
        """Reads sample.npz, from its bytes or its path. Raises Damaged."""
        where = content if isinstance(content, Path) else "sample"
        try:
            data = io.BytesIO(content if isinstance(content, bytes) else regular(content).read_bytes())
            with np.load(data, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
            raise Damaged(where, "the sample of a model", reason(error)) from error
        inputs, outputs = (
            {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            for prefix in ("in:", "out:")
        )
        return cls(inputs, outputs)


def is_sample(file: Path) -> bool:
    """Whether the file is a sample, judged by the names of its arrays."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            return bool(names) and all(name.startswith(("in:", "out:")) for name in names)
    except (OSError, zipfile.BadZipFile):
        return False
