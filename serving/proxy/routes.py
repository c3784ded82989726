"""The calls that clients may make; every other call gets 403.

None changes the server. Source of the names: triton-inference-server/server docs/protocol,
triton-inference-server/common grpc_service.proto.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NAME = "[A-Za-z0-9_.-]+"
MODEL = f"/v2/models/{NAME}(/versions/[0-9]+)?"
READS = ("/v2", "/v2/health/(live|ready)", f"{MODEL}(/ready|/config|/stats)?", "/v2/models/stats")
ASKS = (f"{MODEL}/infer", "/v2/repository/index")
GRPC = "/inference.GRPCInferenceService/"
GRPC_CALLS = ["ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig"]
GRPC_CALLS += ["ModelStatistics", "ModelInfer", "RepositoryIndex"]
GRPC_HEALTH = "/grpc.health.v1.Health/Check"

ANSWER_S, TRIES = 30.0, 3
# A dead server has the fewest requests: of two it is chosen three times in four; 0.75^50 is 6e-7.
CHOICES = 50


def routes() -> list[dict[str, Any]]:
    calls = [*(GRPC + name for name in GRPC_CALLS), GRPC_HEALTH]
    http = [("GET", regex) for regex in READS] + [("POST", regex) for regex in ASKS]
    return [
        *(_route({"path": call}, "POST", "grpc") for call in calls),
        *(_route({"safe_regex": {"regex": regex}}, method, "http") for method, regex in http),
        {"match": {"prefix": "/"}, "direct_response": _denied()},
    ]


def _denied() -> dict[str, Any]:
    return {"status": 403, "body": {"inline_string": '{"error":"proxy: this call is not open to clients"}'}}


def _route(path: dict[str, Any], method: str, cluster: str) -> dict[str, Any]:
    match = {**path, "headers": [{"name": ":method", "string_match": {"exact": method}}]}
    action = {
        "cluster": cluster,
        "timeout": f"{ANSWER_S}s",
        "max_stream_duration": {"grpc_timeout_header_max": f"{ANSWER_S}s"},  # a client's own deadline holds
        "retry_policy": _retries(),
    }
    return {"match": match, "route": action}


def _retries() -> dict[str, Any]:
    """A failed request may go elsewhere: inference changes nothing. A full proxy's refusal is final."""
    conditions: Sequence[str] = ("5xx", "internal", "unavailable")  # 5xx: also resets and failed connections
    return {
        "retry_on": ",".join(conditions),
        "num_retries": TRIES - 1,
        "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                },
            }
        ],
        "host_selection_retry_max_attempts": CHOICES,
    }
