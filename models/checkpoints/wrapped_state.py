"""Unwraps state dicts of other training programs: the network is an entry of a dictionary, or its names have a prefix.

In: a file's content. Out: name -> value of the network alone, and a note of what was removed; or AmbiguousState. The
wrappers add prefixes: DataParallel and AveragedModel `module.`, torch.compile `_orig_mod.`, Lightning mostly `model.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EMA_ENTRIES = ("state_dict_ema", "model_ema", "ema_state_dict", "ema")
ENTRIES = ("state_dict", "model_state_dict", "model", "net", *EMA_ENTRIES)
PREFIXES = ("module.", "_orig_mod.", "model.", "ema_model.", "model_ema.", "ema.")
COUNTER = "n_averaged"  # of torch.optim.swa_utils.AveragedModel


class AmbiguousState(ValueError):
    pass


def unwrap(state: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The note is empty where nothing was unwrapped. Raises AmbiguousState for more than one network."""
    said = []
    inner = {name: state[name] for name in ENTRIES if isinstance(state.get(name), Mapping) and state[name]}
    if len(inner) > 1:
        raise AmbiguousState(f"expected one network, found {' and '.join(inner)}; save the network that you mean alone")
    for name, network in inner.items():
        state = network
        said.append(f"the averaged weights of the entry {name}" if name in EMA_ENTRIES else f"the entry {name}")
    if COUNTER in state and all(name.startswith("module.") for name in state if name != COUNTER):
        state = {name: value for name, value in state.items() if name != COUNTER}
        said.append("the averaged weights of an AveragedModel")
    while prefix := next((each for each in PREFIXES if state and all(name.startswith(each) for name in state)), None):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
        said.append(f"names without their prefix {prefix}")
    families = [each for each in PREFIXES if any(name.startswith(each) for name in state)]
    if len(families) > 1:
        raise AmbiguousState(f"expected one network, found names of {' and '.join(families)}")
    return state, ", ".join(said)
