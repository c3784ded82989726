"""Changes which versions of a published model are served, on disk and in running servers.

In: a model's folder, and the running servers, if any. Out: config.pbtxt with another version policy, which the servers
have loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import json_format

from common.repository import served_versions, versions
from export.errors import PublishError
from export.publishing.build_config_pbtxt import SERVED_VERSIONS
from export.publishing.publish import locked, read_config, remove_model, remove_version, serve
from serving.model_control_client import Control, ControlFailed, NotExplicit, OtherConfig, Refused, Unreachable

DEFAULT_HTTP_PORT, DEFAULT_GRPC_PORT = "8000", "8001"


@dataclass(frozen=True)
class Servers:
    """The running servers of a repository. They load a change in turn."""

    controls: Sequence[Control]

    @property
    def addresses(self) -> list[str]:
        return [control.url for control in self.controls]

    def served(self) -> dict[str, list[int]]:
        """Model -> the versions that are ready on every server, ascending."""
        first, *others = (control.served() for control in self.controls)
        return {
            name: [number for number in numbers if all(number in other.get(name, ()) for other in others)]
            for name, numbers in first.items()
        }


def connect(
    addresses: Sequence[str], headers: Mapping[str, str], grpc: Sequence[str] = (), key: str | None = None
) -> Servers | None:
    """The servers that answer at `addresses`, HOST:PORT of HTTP; None if none does.

    `headers`: of every request. `grpc`: HOST:PORT of gRPC for each server; by default guessed from the port of HTTP.
    `key`: of all servers; by default the key of a server that this user has started on this machine. Raises Refused if
    a server does not list its models.
    """
    ports: Sequence[str | None] = grpc or [_grpc_of(address) for address in addresses]
    controls: list[Control] = []
    for address, port in zip(addresses, ports, strict=True):
        with suppress(Unreachable):
            (control := Control.at(address, port, headers, key)).served()
            controls.append(control)
    return Servers(controls) if controls else None


def _grpc_of(address: str) -> str | None:
    """Address of gRPC of a server with the default ports; None for other ports."""
    host, _, port = address.rpartition(":")
    return f"{host}:{DEFAULT_GRPC_PORT}" if port == DEFAULT_HTTP_PORT else None


def served(model_dir: Path) -> list[int]:
    """The versions that config.pbtxt serves, ascending. Raises PublishError."""
    return served_versions(read_config(model_dir), versions(model_dir))


def fall_back(model_dir: Path) -> int:
    """The version to go back to: the newest that is older than the default, preferably served. Raises PublishError."""
    numbers = served(model_dir)
    older = numbers[:-1] or [number for number in versions(model_dir) if number < min(numbers, default=0)]
    if not older:
        raise PublishError(f"{model_dir}: expected a version older than {max(numbers, default=0)}, found none")
    return older[-1]


def promote(model_dir: Path, number: int, server: Servers | None) -> list[int]:
    """Serves version `number` and the version before it; returns what was served until now. Raises as `activate`."""
    present, before = versions_with(model_dir, number), served(model_dir)
    serve(model_dir, [version for version in present if version <= number][-SERVED_VERSIONS:])
    activate(model_dir, before, server)
    return before


def versions_with(model_dir: Path, number: int) -> list[int]:
    """All versions on disk, ascending. Raises PublishError if `number` is not among them."""
    present = versions(model_dir)
    if number not in present:
        raise PublishError(f"{model_dir}: expected one of the versions {_listed(present)}, found {number}")
    return present


def activate(model_dir: Path, before: Sequence[int], server: Servers | None) -> None:
    """Makes the running servers load a changed model. `before`: the versions that were served; empty for a new model.

    Raises Refused if a server refuses to load: then `before` is served again, and a new model is removed unless it has
    gained a version since. The change stays on disk with NotExplicit, for a server without model control, and with
    OtherConfig, for servers that have another repository.
    """
    if server is None:
        return
    changed: list[Control] = []
    try:
        for control in server.controls:
            changed.append(control)
            control.load(model_dir.name)
    except NotExplicit:
        raise
    except Refused:
        if before:
            serve(model_dir, before)
            for control in changed:  # also the refusing server, whose supervisor may have loaded the change meanwhile
                with suppress(ControlFailed):
                    control.load(model_dir.name)
            raise
        with locked(model_dir.parent):
            if versions(model_dir) == [1]:
                remove_model(model_dir)
        raise
    if others := [control.url for control in changed if _serves_another(control, model_dir)]:
        raise OtherConfig(f"{' and '.join(others)}: {model_dir.name} is loaded from another repository")


def _serves_another(control: Control, model_dir: Path) -> bool:
    """Whether the server's model has other parameters than config.pbtxt, or other ready versions than it serves.

    Triton's version policy may be an old one: a version that is not loaded again keeps its first. Returns False for a
    server that does not tell its configuration.
    """
    written = read_config(model_dir)
    try:
        told = {"parameters": control.config(model_dir.name).get("parameters", {})}
        ready = control.served().get(model_dir.name)
    except ControlFailed:
        return False
    loaded = json_format.ParseDict(told, type(written)(), ignore_unknown_fields=True)
    return loaded.parameters != written.parameters or ready != served(model_dir)


def prune(model_dir: Path, keep: int, loaded: Collection[int]) -> list[int]:
    """Removes all versions but the newest `keep`, the served, and those `loaded` by a server; returns the removed."""
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
