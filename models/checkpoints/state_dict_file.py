"""Reads state dicts of `torch.save` (.pth), running no code and trusting no size.

In: a zip archive of a pickle and storages. Out: name -> tensor; or UnsafeFile. The archive must be uncompressed and
hold the tensors' bytes: a few compressed zeros, or a tensor of stride 0, hold any number of values.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from models.checkpoints.wrapped_state import AmbiguousState, unwrap

MAX_BYTES = 1 << 24  # four times a published ViT; to list the members of such an archive takes Python 1.5 s and 90 MB
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the pickled number at the start of files before PyTorch 1.6
MAX_PICKLE_BYTES = 1 << 19  # a block takes 3 kB
EXPECTED = "expected a state dict of only tensors"


class UnsafeFile(ValueError):
    pass


def read_state_dict(path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors by name, and a note of the wrappers that were removed (models/checkpoints/wrapped_state.py).

    Raises UnsafeFile for any other file, before it allocates more than the file's size.
    """
    _check_archive(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes raise any exception
        raise UnsafeFile(f"{EXPECTED}, found {unpickling_reason(error)}") from error
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise UnsafeFile(f"{EXPECTED}, found {type(state).__name__}")
    try:
        state, note = unwrap(state)
    except AmbiguousState as error:
        raise UnsafeFile(str(error)) from error
    if not all(isinstance(name, str) for name in state):
        raise UnsafeFile(f"{EXPECTED}, found a name that is no text")
    for value in state.values():
        if not isinstance(value, Tensor):
            raise UnsafeFile(f"{EXPECTED}, found {type(value).__name__}")
        if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized:
            raise UnsafeFile(f"{EXPECTED}, found a tensor of layout {value.layout} on {value.device.type}")
    size, stored = sum(value.nbytes for value in state.values()), path.stat().st_size
    if size > stored:
        raise UnsafeFile(f"expected tensors of up to {stored} bytes, the size of the file, found {size}")
    return dict(state), note


def is_legacy(path: Path) -> bool:
    """Whether PyTorch before 1.6 wrote the file, which only its unsafe loader reads."""
    with path.open("rb") as file:
        return file.read(len(LEGACY)) == LEGACY


def unpickling_reason(error: Exception) -> str:
    """Why a pickle cannot be read, without PyTorch's advice to load it anyway."""
    name = re.search(r"GLOBAL ([\w.]+)", str(error))
    return f"the name {name[1]}" if name else f"something else ({type(error).__name__})"


def _check_archive(path: Path) -> None:
    if (stored := path.stat().st_size) > MAX_BYTES:
        raise UnsafeFile(f"{EXPECTED} and up to {MAX_BYTES} bytes, found {stored}")
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise UnsafeFile(f"{EXPECTED}, found {' '.join(str(error).split())}") from error
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise UnsafeFile("expected an archive without compression, as torch.save writes, found a compressed member")
    if (size := sum(member.file_size for member in members)) > stored:
        raise UnsafeFile(f"expected members of up to {stored} bytes, the size of the file, found {size}")
    pickled = max((member.file_size for member in members if member.filename.endswith(".pkl")), default=0)
    if pickled > MAX_PICKLE_BYTES:
        raise UnsafeFile(f"expected a pickle of up to {MAX_PICKLE_BYTES} bytes, found {pickled}")
