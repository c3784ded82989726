"""Changes the served versions of a published model.

In: a model's folder and the running server, if any. Out: config.pbtxt with another version policy, loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from common.repository import served_versions, versions
from export.errors import PublishError
from export.publishing.publish import locked, read_config, remove_model, remove_version, serve
from export.publishing.triton_config import SERVED_VERSIONS
from serving.control import Control, ControlFailed, NotExplicit, Refused, Unreachable

DEFAULT_HTTP_PORT, DEFAULT_GRPC_PORT = "8000", "8001"


@dataclass(frozen=True)
class Servers:
    """Several servers of one repository, which load in turn."""

    controls: Sequence[Control]

    def served(self) -> dict[str, list[int]]:
        """Model -> the versions that are ready on every server, ascending."""
        first, *others = (each.served() for each in self.controls)
        return {
            name: [number for number in numbers if all(number in each.get(name, ()) for each in others)]
            for name, numbers in first.items()
        }


def connect(
    addresses: Sequence[str], headers: Mapping[str, str], grpc: Sequence[str] = (), key: str | None = None
) -> Servers | None:
    """None if no server answers; raises Refused if one does not list its models.

    `key` of all servers; by default each server's own, if this user has started it on this machine.
    """
    ports: Sequence[str | None] = grpc or [_grpc_of(each) for each in addresses]
    servers = Servers([Control.at(each, port, headers, key) for each, port in zip(addresses, ports, strict=True)])
    try:
        servers.served()
    except Unreachable:
        return None
    return servers


def _grpc_of(address: str) -> str | None:
    host, _, port = address.rpartition(":")
    return f"{host}:{DEFAULT_GRPC_PORT}" if port == DEFAULT_HTTP_PORT else None


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


def promote(model_dir: Path, number: int, server: Servers | None) -> list[int]:
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


def activate(model_dir: Path, before: Sequence[int], server: Servers | None) -> None:
    """Makes the running server load a changed model.

    A refused load raises Refused: `before` is served again; a new model (empty `before`) is removed unless it has
    gained a version since. Without model control it raises NotExplicit; the change stays.
    """
    if server is None:
        return
    asked: list[Control] = []
    try:
        for each in server.controls:
            asked.append(each)
            each.load(model_dir.name)
    except NotExplicit:
        raise
    except Refused:
        if before:
            serve(model_dir, before)
            for each in asked:  # the refusing server's supervisor may have loaded the change meanwhile
                with suppress(ControlFailed):
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
