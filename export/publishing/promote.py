"""Changes the served versions of a published model.

In: a model's folder and the running server, if any. Out: config.pbtxt with another version policy, loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from export.publishing.artifact import PublishError
from export.publishing.live import LiveServer, LiveServers, NotExplicit, ServerRefused, ServerUnreachable
from export.publishing.publish import locked, read_config, remove_model, remove_version, serve, versions
from export.publishing.triton_config import SERVED_VERSIONS, served_versions


def served(model_dir: Path) -> list[int]:
    """Ascending."""
    return served_versions(read_config(model_dir), versions(model_dir))


def fall_back(model_dir: Path) -> int:
    """The newest older version, preferably served."""
    now = served(model_dir)
    older = now[:-1] or [number for number in versions(model_dir) if number < min(now, default=0)]
    if not older:
        raise PublishError(f"{model_dir}: expected a version older than {max(now, default=0)}, found none")
    return older[-1]


def promote(model_dir: Path, number: int, server: LiveServers | None) -> list[int]:
    """Serves version `number` and the version before it; returns those served until now. Raises as `activate`."""
    present, before = versions_with(model_dir, number), served(model_dir)
    serve(model_dir, [version for version in present if version <= number][-SERVED_VERSIONS:])
    activate(model_dir, before, server)
    return before


def versions_with(model_dir: Path, number: int) -> list[int]:
    """Raises PublishError if `number` is none of them."""
    present = versions(model_dir)
    if number not in present:
        raise PublishError(f"{model_dir}: expected one of the versions {_listed(present)}, found {number}")
    return present


def activate(model_dir: Path, before: Sequence[int], server: LiveServers | None) -> None:
    """Makes the running server load a changed model.

    A refused load raises ServerRefused: `before` is served again; a new model (empty `before`) is removed unless it has
    gained a version since. Without model control it raises NotExplicit; the change stays.
    """
    if server is None:
        return
    loaded: list[LiveServer] = []
    try:
        for each in server.servers:
            each.load(model_dir.name)
            loaded.append(each)
    except NotExplicit:
        raise
    except ServerRefused:
        if before:
            serve(model_dir, before)
            for each in loaded:
                with suppress(ServerRefused, ServerUnreachable):
                    each.load(model_dir.name)
            raise
        with locked(model_dir.parent):
            if versions(model_dir) == [1]:
                remove_model(model_dir)
        raise


def prune(model_dir: Path, keep: int, loaded: Collection[int]) -> list[int]:
    """Keeps the newest `keep`, served and `loaded` versions; returns the removed."""
    with locked(model_dir.parent):
        present = versions(model_dir)
        kept = {*present[-keep:], *served(model_dir), *loaded}
        needed = {(model_dir / str(number)).resolve() for number in kept}  # a kept version may be a link to another
        removed = [number for number in present if (model_dir / str(number)).resolve() not in needed]
        for number in removed:
            remove_version(model_dir, number)
    return removed


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "(none)"
