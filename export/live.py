"""A running Triton server, told of its models through the model-control API.

In: an address. Out: what the server serves, or that it took up a change; or an error that says why not. A load swaps
without a gap: the old version answers until the new one does, and goes on where the new one cannot.
Source: triton-inference-server/server, docs/protocol/extension_model_repository.md.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from export.errors import ExportError

TIMEOUT_S = 120.0  # a load ends when the model has been loaded and warmed up


class ServerUnreachable(ExportError):
    """No server answers at that address."""


class ServerRefused(ExportError):
    """The server said no; the message holds its reason."""


@dataclass(frozen=True)
class LiveServer:
    """The server at `address`, HOST:PORT of its HTTP endpoint; `headers` are sent with every request."""

    address: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def served(self) -> dict[str, list[int]]:
        """Every model in the server's repository -> its versions that answer, ascending."""
        found: dict[str, list[int]] = {}
        for entry in self._post("v2/repository/index", {}):
            versions = found.setdefault(entry["name"], [])
            if entry.get("state") == "READY":
                versions.append(int(entry["version"]))
        return {name: sorted(versions) for name, versions in found.items()}

    def load(self, model: str) -> None:
        """Lets the server read the model's config.pbtxt again and serve the versions that it names."""
        self._post(f"v2/repository/models/{model}/load", {})

    def _post(self, path: str, content: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://{self.address}/{path}",
            json.dumps(content).encode(),
            {"Content-Type": "application/json", **self.headers},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy must not see loopback
        try:
            with opener.open(request, timeout=TIMEOUT_S) as response:
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            raise ServerRefused(f"{self.address}: {_reason(error)}") from error
        except (OSError, ValueError) as error:
            raise ServerUnreachable(f"no Triton server at {self.address} ({error})") from error


def connect(address: str, headers: Mapping[str, str]) -> LiveServer | None:
    """The server at `address`, None where none answers there; raises ServerRefused where one does not tell."""
    server = LiveServer(address, headers)
    try:
        server.served()
    except ServerUnreachable:
        return None
    return server


def _reason(error: urllib.error.HTTPError) -> str:
    """What Triton says in the body, else the status."""
    try:
        reason = " ".join(str(json.loads(error.read())["error"]).split())
    except (OSError, ValueError, KeyError, TypeError):
        reason = f"HTTP status {error.code}"
    if error.code == 403:
        return f"{reason} (the key of --http-restricted-api goes into --header NAME:VALUE)"
    return reason
