"""Lists and loads the models of a running Triton server.

The old version answers until the new version is loaded, and stays if the load fails.
Source: triton-inference-server/server, docs/protocol/extension_model_repository.md.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from export.errors import ExportError

DEFAULT_HTTP_PORT, DEFAULT_GRPC_PORT = "8000", "8001"
TIMEOUT_S = 120.0  # a load includes the warm-up
EXPLICIT_MODE = "--model-control-mode=explicit --load-model=*"
NOT_EXPLICIT = "explicit model load / unload is not allowed"  # Triton's message in its other two modes


class ServerUnreachable(ExportError):
    pass


class ServerRefused(ExportError):
    pass


class NotExplicit(ServerRefused):
    pass


@dataclass(frozen=True)
class LiveServer:
    """`address` and `grpc` are HOST:PORT."""

    address: str
    headers: Mapping[str, str] = field(default_factory=dict)
    grpc: str | None = None

    def served(self) -> dict[str, list[int]]:
        """Model -> its ready versions, ascending."""
        models: dict[str, list[int]] = {}
        index = self._post("v2/repository/index", {})
        try:
            for entry in index:
                versions = models.setdefault(entry["name"], [])
                if entry.get("state") == "READY":
                    versions.append(int(entry["version"]))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            found = " ".join(str(index).split())[:80]
            raise ServerUnreachable(f"no Triton at {self.address} (expected its index, found {found})") from error
        return {name: sorted(versions) for name, versions in models.items()}

    def load(self, model: str) -> None:
        """Raises ServerRefused, NotExplicit or ServerUnreachable."""
        if not self._load_over_grpc(model):
            self._post(f"v2/repository/models/{model}/load", {})

    def _load_over_grpc(self, model: str) -> bool:
        """False without gRPC. Over HTTP a load blocks a thread of Triton with all its connections."""
        host, _, port = self.address.rpartition(":")
        grpc = self.grpc or (f"{host}:{DEFAULT_GRPC_PORT}" if port == DEFAULT_HTTP_PORT else None)
        if grpc is None:
            return False
        from tritonclient.grpc import InferenceServerClient
        from tritonclient.utils import InferenceServerException

        headers = {name.lower(): value for name, value in self.headers.items()}
        guarded = {f"triton-grpc-protocol-{name}": value for name, value in headers.items()}
        try:
            with InferenceServerClient(grpc, channel_args=[("grpc.enable_http_proxy", 0)]) as client:
                client.load_model(model, headers={**headers, **guarded}, client_timeout=TIMEOUT_S)
        except InferenceServerException as error:
            if error.status() in ("StatusCode.UNAVAILABLE", "StatusCode.UNIMPLEMENTED"):
                return False  # no gRPC there, or another key guards it
            raise _refused(grpc, " ".join(str(error.message()).split())) from error
        return True

    def _post(self, path: str, content: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://{self.address}/{path}",
            json.dumps(content).encode(),
            {"Content-Type": "application/json", **self.headers},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # ignores $http_proxy
        try:
            with opener.open(request, timeout=TIMEOUT_S) as response:
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            raise _refused(self.address, _reason(error)) from error
        except (OSError, ValueError, HTTPException) as error:
            raise ServerUnreachable(f"no Triton server at {self.address} ({' '.join(str(error).split())})") from error


@dataclass(frozen=True)
class LiveServers:
    """Several servers of one repository, which load in turn."""

    servers: Sequence[LiveServer]

    def served(self) -> dict[str, list[int]]:
        """Model -> the versions that are ready on every server, ascending."""
        first, *others = (server.served() for server in self.servers)
        return {
            name: [number for number in numbers if all(number in each.get(name, ()) for each in others)]
            for name, numbers in first.items()
        }


def connect(addresses: Sequence[str], headers: Mapping[str, str], grpc: Sequence[str] = ()) -> LiveServers | None:
    """Raises ServerRefused if a server does not list its models."""
    of_grpc: Sequence[str | None] = grpc or [None] * len(addresses)
    servers = LiveServers([LiveServer(each, headers, port) for each, port in zip(addresses, of_grpc, strict=True)])
    try:
        servers.served()
    except ServerUnreachable:
        return None
    return servers


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        reason = " ".join(str(json.loads(error.read())["error"]).split())
    except (OSError, ValueError, HTTPException, KeyError, TypeError):
        reason = f"HTTP status {error.code}"
    if error.code == 403:
        reason += " (the key of --http-restricted-api goes into --header NAME:VALUE)"
    return reason


def _refused(address: str, reason: str) -> ServerRefused:
    if NOT_EXPLICIT in reason:
        return NotExplicit(f"the server at {address} loads no models on request; start it with {EXPLICIT_MODE}")
    return ServerRefused(f"{address}: {reason}")
