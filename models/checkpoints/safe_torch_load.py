"""Reads state dicts of `torch.save` (.pth), running no code and trusting no size, and unwraps the network in them.

In: a zip archive of a pickle and storages. Out: name -> tensor; or WrongFile. The archive must be uncompressed and
hold the tensors' bytes: a few compressed zeros, or a tensor of stride 0, hold any number of values.

In the files of other training programs the network is an entry of a dictionary, or its names have a prefix:
DataParallel and AveragedModel add `module.`, torch.compile `_orig_mod.`, Lightning mostly `model.`.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.checkpoints.tensor_check import WrongFile

MAX_BYTES = 1 << 24  # four times a published ViT; to list the members of such an archive takes Python 1.5 s and 90 MB
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the pickled number at the start of files before PyTorch 1.6
MAX_PICKLE_BYTES = 1 << 19  # a block takes 3 kB
EXPECTED = "expected a state dict of only tensors"

EMA_ENTRIES = ("state_dict_ema", "model_ema", "ema_state_dict", "ema")
ENTRIES = ("state_dict", "model_state_dict", "model", "net", *EMA_ENTRIES)
PREFIXES = ("module.", "_orig_mod.", "model.", "ema_model.", "model_ema.", "ema.")
COUNTER = "n_averaged"  # of torch.optim.swa_utils.AveragedModel


def read_state_dict(path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors by name, and a note of the wrappers that were removed.

    Raises WrongFile for any other file, before it allocates more than the file's size.
    """
    _check_archive(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes raise any exception
        raise WrongFile(f"{EXPECTED}, found {unpickling_reason(error)}") from error
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise WrongFile(f"{EXPECTED}, found {type(state).__name__}")
    state, note = _unwrap(state)
    if not all(isinstance(name, str) for name in state):
        raise WrongFile(f"{EXPECTED}, found a name that is no text")
    for value in state.values():
        if not isinstance(value, Tensor):
            raise WrongFile(f"{EXPECTED}, found {type(value).__name__}")
        if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized:
            raise WrongFile(f"{EXPECTED}, found a tensor of layout {value.layout} on {value.device.type}")
    size, stored = sum(value.nbytes for value in state.values()), path.stat().st_size
    if size > stored:
        raise WrongFile(f"expected tensors of up to {stored} bytes, the size of the file, found {size}")
    return dict(state), note


def _unwrap(state: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Name -> value of the network alone, and a note of what was removed, empty for nothing.

    Raises WrongFile for more than one network.
    """
    removed = []
    networks = {name: state[name] for name in ENTRIES if isinstance(state.get(name), Mapping) and state[name]}
    if len(networks) > 1:
        raise WrongFile(f"expected one network, found {' and '.join(networks)}; save the network that you mean alone")
    for name, network in networks.items():
        state = network
        removed.append(f"the averaged weights of the entry {name}" if name in EMA_ENTRIES else f"the entry {name}")
    if COUNTER in state and all(name.startswith("module.") for name in state if name != COUNTER):
        state = {name: value for name, value in state.items() if name != COUNTER}
        removed.append("the averaged weights of an AveragedModel")
    while prefix := _common_prefix(state):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
        removed.append(f"names without their prefix {prefix}")
    families = [start for start in PREFIXES if any(name.startswith(start) for name in state)]
    if len(families) > 1:
        raise WrongFile(f"expected one network, found names of {' and '.join(families)}")
    return state, ", ".join(removed)


def _common_prefix(names: Collection[str]) -> str:
    """The prefix that all names have, out of PREFIXES; empty without such a prefix."""
    return next((prefix for prefix in PREFIXES if names and all(name.startswith(prefix) for name in names)), "")


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
        raise WrongFile(f"{EXPECTED} and up to {MAX_BYTES} bytes, found {stored}")
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise WrongFile(f"{EXPECTED}, found {' '.join(str(error).split())}") from error
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise WrongFile("expected an archive without compression, as torch.save writes, found a compressed member")
    if (size := sum(member.file_size for member in members)) > stored:
        raise WrongFile(f"expected members of up to {stored} bytes, the size of the file, found {size}")
    pickled = max((member.file_size for member in members if member.filename.endswith(".pkl")), default=0)
    if pickled > MAX_PICKLE_BYTES:
        raise WrongFile(f"expected a pickle of up to {MAX_PICKLE_BYTES} bytes, found {pickled}")
