"""Envoy's clusters for HTTP and gRPC: endpoints, health checks, limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from serving.proxy.settings import Backend, Settings

TYPES = "type.googleapis.com/envoy"
Protocol = Literal["http", "grpc"]
PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")
CHECK_S = 0.5  # between health checks
CONNECT_S = 0.5
EJECT_S = 5.0
FAILURES = 5  # in a row, before the probe has noticed; not 500, Triton's answer to wrong JSON
SPARE_RETRIES = 10


def cluster(settings: Settings, protocol: Protocol, folder: str) -> dict[str, Any]:
    """The endpoints stand in `folder` if the servers are IP addresses."""
    count = len(settings.backends)
    if settings.by_file:
        source = {"path_config_source": {"path": f"{folder}/{protocol}.json"}, "resource_api_version": "V3"}
        where = {"type": "EDS", "eds_cluster_config": {"eds_config": source}}
    else:
        where = {"type": "STRICT_DNS", "dns_refresh_rate": "1s", "load_assignment": assignment(settings, protocol)}
    most = settings.in_flight * count
    limits = {"max_connections": most, "max_pending_requests": 2 * count, "max_requests": most, "track_remaining": True}
    # Enough for all requests of a failed server.
    budget = {"budget_percent": {"value": 100 / min(count, 2)}, "min_retry_concurrency": SPARE_RETRIES}
    http2: Mapping[str, Any] = {"http2_protocol_options": {}} if protocol == "grpc" else {"http_protocol_options": {}}
    options = {
        "@type": f"{TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": http2,
    }
    return {
        "name": protocol,
        **where,
        "connect_timeout": f"{CONNECT_S}s",
        # Draws two: among all servers, a dead server is the least busy.
        "lb_policy": "LEAST_REQUEST",
        # A wrong server gets nothing, even as the last; changes count at once, not after 1 s.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}, "update_merge_window": "0s"},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
        "circuit_breakers": {"thresholds": [{**limits, "retry_budget": budget}]},
        "health_checks": [_check()],
        "close_connections_on_host_health_failure": True,  # frees the requests that a stopped process holds
        "ignore_health_on_host_removal": True,
        "outlier_detection": {
            "consecutive_gateway_failure": FAILURES,
            "enforcing_consecutive_gateway_failure": 100,
            "enforcing_consecutive_5xx": 0,
            "interval": "1s",
            "base_ejection_time": f"{EJECT_S}s",
            "max_ejection_percent": 100 * (count - 1) // count,
            "enforcing_success_rate": 0,
        },
    }


def _check() -> dict[str, Any]:
    every = dict.fromkeys(("interval", "no_traffic_interval", "unhealthy_interval"), f"{CHECK_S}s")
    return {
        **every,
        "timeout": "1s",
        "unhealthy_threshold": 2,  # of no answer; an answer of 503 counts at once
        "healthy_threshold": 1,
        "http_health_check": {"path": "/"},
    }


def assignment(settings: Settings, protocol: Protocol) -> dict[str, Any]:
    endpoints = [_endpoint(each, protocol) for each in settings.backends]
    return {"cluster_name": protocol, "endpoints": [{"lb_endpoints": endpoints}]}


def _endpoint(backend: Backend, protocol: Protocol) -> dict[str, Any]:
    port = backend.http if protocol == "http" else backend.grpc
    return {
        "health_status": "DRAINING" if backend.draining else "UNKNOWN",  # UNKNOWN: the health check decides
        "endpoint": {
            "address": socket(backend.host, port),
            "health_check_config": {"port_value": backend.health},
        },
    }


def socket(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}
