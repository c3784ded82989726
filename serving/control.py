"""A running Triton server's model-control API.

Source: triton-inference-server/server, docs/protocol/extension_model_repository.md.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

ANSWER_S = 2.0


class ControlFailed(Exception):
    pass


@dataclass(frozen=True)
class Control:
    """`url` is HOST:PORT of HTTP; `headers` go with every request.

    Loads go to `grpc_url`, if given: over HTTP they hold a thread of Triton with all its connections.
    """

    url: str
    headers: Mapping[str, str]
    grpc_url: str | None = None
    grpc_headers: Mapping[str, str] = field(default_factory=dict)

    def index(self) -> dict[str, dict[int, str]]:
        """Model -> version -> state ("READY", "LOADING", "UNAVAILABLE", …); raises ControlFailed."""
        states: dict[str, dict[int, str]] = {}
        for entry in self._post("v2/repository/index", {}, ANSWER_S):
            versions = states.setdefault(entry["name"], {})
            if entry.get("version"):
                versions[int(entry["version"])] = entry.get("state", "")
        return states

    def load(self, model: str, config: str | None, timeout_s: float) -> None:
        """`config` (JSON) replaces config.pbtxt; raises ControlFailed."""
        if not self._load_over_grpc(model, config, timeout_s):
            content = {} if config is None else {"parameters": {"config": config}}
            self._post(f"v2/repository/models/{model}/load", content, timeout_s)

    def _load_over_grpc(self, model: str, config: str | None, timeout_s: float) -> bool:
        if self.grpc_url is None:
            return False
        from tritonclient.grpc import InferenceServerClient
        from tritonclient.utils import InferenceServerException

        try:
            with InferenceServerClient(self.grpc_url, channel_args=[("grpc.enable_http_proxy", 0)]) as client:
                client.load_model(model, dict(self.grpc_headers), config=config, client_timeout=timeout_s)
        except InferenceServerException as error:
            if error.status() in ("StatusCode.UNAVAILABLE", "StatusCode.UNIMPLEMENTED"):
                return False  # no gRPC there, or guarded by another key
            raise ControlFailed(f"{error.status()} {' '.join(str(error.message()).split())}") from error
        return True

    def unload(self, model: str, timeout_s: float) -> None:
        """Answers before the model is gone; raises ControlFailed."""
        self._post(f"v2/repository/models/{model}/unload", {}, timeout_s)

    def _post(self, path: str, content: dict[str, Any], timeout_s: float) -> Any:
        headers = {"Content-Type": "application/json", **self.headers}
        request = urllib.request.Request(f"http://{self.url}/{path}", json.dumps(content).encode(), headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # ignores $http_proxy
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            words = error.reason
            with suppress(OSError, HTTPException):
                words = " ".join(error.read(2000).decode(errors="replace").split())
            raise ControlFailed(f"HTTP {error.code} {words}") from error
        except (OSError, ValueError, HTTPException) as error:
            raise ControlFailed(f"no answer at {self.url}: {error}") from error
