"""Which versions of a published model are served: promote one, fall back, prune what is no longer needed.

In: a model's folder, and the running server where there is one. Out: config.pbtxt with another version policy, which
that server has taken up; where it cannot, config.pbtxt is as it was and the old version still answers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from export.artifact import PublishError
from export.live import LiveServer, ServerRefused
from export.publish import locked, read_config, remove_model, remove_version, serve, versions
from export.triton_config import SERVED_VERSIONS, served_versions


def served(model_dir: Path) -> list[int]:
    """The versions that config.pbtxt lets a server serve, ascending; the last is whom no version is asked of."""
    return served_versions(read_config(model_dir), versions(model_dir))


def fall_back(model_dir: Path) -> int:
    """The version to go back to: the one before the served one, of those served too if there is such."""
    now = served(model_dir)
    older = now[:-1] or [number for number in versions(model_dir) if number < min(now, default=0)]
    if not older:
        raise PublishError(f"{model_dir}: expected a version older than {max(now, default=0)}, found none")
    return older[-1]


def promote(model_dir: Path, number: int, server: LiveServer | None) -> list[int]:
    """Serves version `number` and the one before it, with no newer one; returns what was served before.

    Raises PublishError where there is no such version, ServerRefused where the server cannot load it.
    """
    present, before = versions(model_dir), served(model_dir)
    if number not in present:
        raise PublishError(f"{model_dir}: expected one of the versions {_listed(present)}, found {number}")
    serve(model_dir, [version for version in present if version <= number][-SERVED_VERSIONS:])
    activate(model_dir, before, server)
    return before


def activate(model_dir: Path, before: Sequence[int], server: LiveServer | None) -> None:
    """Lets the running server take up a changed model; where it refuses, serves `before` again and raises.

    `before` is empty for a new model, which is then removed, unless another version of it has come since.
    """
    if server is None:
        return
    try:
        server.load(model_dir.name)
    except ServerRefused:
        if before:
            serve(model_dir, before)
            raise
        with locked(model_dir.parent):
            if versions(model_dir) == [1]:
                remove_model(model_dir)
        raise


def prune(model_dir: Path, keep: int, loaded: Collection[int]) -> list[int]:
    """Removes all versions but the newest `keep`, those that config.pbtxt serves and those `loaded` in a server."""
    with locked(model_dir.parent):
        present = versions(model_dir)
        kept = {*present[-keep:], *served(model_dir), *loaded}
        removed = [number for number in present if number not in kept]
        for number in removed:
            remove_version(model_dir, number)
    return removed


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "(none)"
