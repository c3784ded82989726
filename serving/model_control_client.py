"""A client of Triton's model-control API, for `vitbn repository` and the supervisor.

Source: triton-inference-server/server, docs/protocol/extension_model_repository.md.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, IncompleteRead, RemoteDisconnected
from typing import Any, Self

from serving import control_key


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a redirect could send the request's keys to another host."""

    def redirect_request(self, *unused: Any) -> None:
        return None


DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)  # ignores $http_proxy

ANSWER_S = 2.0
LOAD_S = 120.0  # a load includes the warm-up
SPLIT_BY_SHELL = re.compile(r"[\s|&;<>()$`\\\"'*?\[\]#~!{}^]")  # Triton starts a model's process by a shell
EXPLICIT_MODE = "--model-control-mode=explicit --load-model=*"
UNKNOWN_CALL = (404, 405, 501)  # HTTP statuses of servers that know no such path, or no POST there
NOT_READY = "Server not ready"  # Triton's message if it could not apply an option at its start
NOT_EXPLICIT = "explicit model load / unload is not allowed"  # Triton's message in its other two modes


class ControlFailed(Exception):
    """The message is one line for the user."""


class Unreachable(ControlFailed):
    """No Triton answers at the address."""


class Refused(ControlFailed):
    """Triton refuses the call; the message holds its reason."""


class NotExplicit(Refused):
    """The server does not run in explicit mode, so it loads no model on request."""


class OtherConfig(ControlFailed):
    """The server has loaded another configuration of the model than the expected configuration."""


class NotReady(Refused):
    """The server could not apply an option at its start, and never becomes ready."""


@dataclass(frozen=True)
class Control:
    """Calls to one server. Methods raise Unreachable or Refused.

    url:      HOST:PORT of HTTP.
    headers:  go with every HTTP request.
    grpc_url: HOST:PORT of gRPC, or None. Loads go there, since a load over HTTP blocks a thread of Triton with all the
              connections of that thread.
    grpc_headers: go with every load over gRPC.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    grpc_url: str | None = None
    grpc_headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def at(
        cls, url: str, grpc_url: str | None = None, headers: Mapping[str, str] | None = None, key: str | None = None
    ) -> Self:
        """A Control whose calls carry `key`, by default the key kept for this user's server at `url`.

        A header of the same name in `headers` takes precedence. Over gRPC Triton expects each header under a prefix.
        """
        key = key or control_key.find(url)
        http_headers = {control_key.HEADER: key} if key else {}
        http_headers |= {name.lower(): value for name, value in (headers or {}).items()}
        prefixed = {f"{control_key.GRPC_PREFIX}{name}": value for name, value in http_headers.items()}
        return cls(url, http_headers, grpc_url, http_headers | prefixed)

    def index(self, timeout_s: float = ANSWER_S) -> dict[str, dict[int, str]]:
        """Returns model -> version -> state ("READY", "LOADING", "UNAVAILABLE", …)."""
        states: dict[str, dict[int, str]] = {}
        answer = self._ask("v2/repository/index", {}, timeout_s)
        try:
            for entry in answer:
                versions = states.setdefault(entry["name"], {})
                if entry.get("version"):
                    versions[int(entry["version"])] = entry.get("state", "")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            found = " ".join(str(answer).split())[:80]
            raise Unreachable(f"no Triton at {self.url} (expected its index, found {found})") from error
        return states

    def served(self) -> dict[str, list[int]]:
        """Returns model -> its ready versions, ascending."""
        return {
            name: sorted(number for number, state in versions.items() if state == "READY")
            for name, versions in self.index(LOAD_S).items()
        }

    def config(self, model: str) -> dict[str, Any]:
        """The configuration with which a model is loaded, as Triton's JSON."""
        _check_name(model)
        answer = self._ask(f"v2/models/{model}/config", None, ANSWER_S)
        if not isinstance(answer, dict):
            raise Unreachable(f"no Triton at {self.url} (expected a configuration, found {str(answer)[:80]})")
        return answer

    def load(self, model: str, config: str | None = None, timeout_s: float = LOAD_S) -> None:
        """Loads a model. A loaded model is loaded again; its old version answers until the new version is ready.

        config: JSON that Triton takes in place of config.pbtxt. Also raises NotExplicit.
        """
        _check_name(model)
        if not self._load_over_grpc(model, config, timeout_s):
            content = {} if config is None else {"parameters": {"config": config}}
            self._ask(f"v2/repository/models/{model}/load", content, timeout_s)

    def _load_over_grpc(self, model: str, config: str | None, timeout_s: float) -> bool:
        """Returns False if the load must go over HTTP."""
        if self.grpc_url is None:
            return False
        from tritonclient.grpc import InferenceServerClient
        from tritonclient.utils import InferenceServerException

        try:
            with InferenceServerClient(self.grpc_url, channel_args=[("grpc.enable_http_proxy", 0)]) as client:
                client.load_model(model, dict(self.grpc_headers), config=config, client_timeout=timeout_s)
        except InferenceServerException as error:
            if error.status() in ("StatusCode.UNAVAILABLE", "StatusCode.UNIMPLEMENTED"):
                return False  # no gRPC at this address, or another key guards it
            raise _refused(self.grpc_url, " ".join(str(error.message()).split())) from error
        return True

    def unload(self, model: str, timeout_s: float) -> None:
        """Starts the unload of a model and returns before the unload is complete."""
        _check_name(model)
        self._ask(f"v2/repository/models/{model}/unload", {}, timeout_s)

    def _ask(self, path: str, content: dict[str, Any] | None, timeout_s: float) -> Any:
        """Returns the answer's JSON. With `content` the request is a POST of JSON, without it a GET.

        Triton rarely ends a connection without an answer; the call is then repeated, which is safe for every call here.
        """
        headers = {"Content-Type": "application/json", **self.headers}
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"http://{self.url}/{path}", body, headers)
        try:
            try:
                return _json(request, timeout_s)
            except RemoteDisconnected:
                return _json(request, timeout_s)
        except urllib.error.HTTPError as error:
            with error:  # closes the connection, also if the answer is incomplete
                raise _refused(self.url, _reason(error, self.url)) from error
        except (OSError, ValueError, RecursionError, HTTPException) as error:
            raise Unreachable(f"no Triton server at {self.url} ({' '.join(str(error).split())})") from error


def _json(request: urllib.request.Request, timeout_s: float) -> Any:
    """The answer's JSON. Raises TimeoutError also while bytes arrive: each starts the socket's own timeout anew."""
    deadline_s, content = time.monotonic() + timeout_s, bytearray()
    with DIRECT.open(request, timeout=timeout_s) as answer:
        while part := answer.read1():
            content += part
            if time.monotonic() > deadline_s:
                raise TimeoutError("timed out")
        if answer.length:
            raise IncompleteRead(bytes(content), answer.length)
    return json.loads(content or b"null")


def _check_name(model: str) -> None:
    """Raises Refused for a name that a shell would split: Triton 2.51 never answers such a load and then never ends."""
    if not model or "/" in model or SPLIT_BY_SHELL.search(model):
        raise Refused(f"model name: expected letters, digits, '_', '-' and '.', found {model!r}")


def _reason(error: urllib.error.HTTPError, address: str) -> str:
    """Triton's reason, else the status. Raises Unreachable for another program, which does not know the call."""
    try:
        reason = " ".join(str(json.loads(error.read())["error"]).split())
    except (OSError, ValueError, RecursionError, HTTPException, KeyError, TypeError):
        reason = f"HTTP status {error.code}"
        if error.code in UNKNOWN_CALL:
            raise Unreachable(f"no Triton server at {address} ({reason})") from error
    if error.code == 403:
        place = control_key.folders()[0] / address.rpartition(":")[2]
        reason += f" (no right key in {place}; who started the server has it: --key-file FILE, or --header NAME:VALUE)"
    return reason


def _refused(address: str, reason: str) -> Refused:
    if NOT_EXPLICIT in reason:
        return NotExplicit(f"the server at {address} loads no models on request; start it with {EXPLICIT_MODE}")
    return (NotReady if reason == NOT_READY else Refused)(f"{address}: {reason}")
