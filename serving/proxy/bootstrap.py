"""Envoy's whole configuration. In: Settings. Out: the JSON files `envoy.json`, `http.json`, `grpc.json`.

Source: envoyproxy.io, API v3 and "Configuring Envoy as an edge proxy". Envoy reads `envoy.json` only at its start.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from serving.proxy.clusters import PROTOCOLS, TYPES, Protocol, assignment, cluster, socket
from serving.proxy.routes import routes
from serving.proxy.settings import Settings

# Per request.
LIMITS = {"header": 4096, "body": 16 * 2**20, "question": 1024, "dimension": 65536}
HEADERS_S, BODY_S, IDLE_S = 5.0, 15.0, 300.0
CONNECTIONS, HEAP = 2048, 2**30
METRICS_PATH = "/stats/prometheus"
HTTP_MANAGER = f"{TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
KEY_HEADER, CLIENT_HEADER = "x-api-key", "x-client"


def contents(settings: Settings, folder: str) -> dict[str, str]:
    """File name -> JSON text; Envoy sees the files under `folder`."""
    texts = {"envoy.json": _bootstrap(settings, folder)}
    if settings.by_file:
        texts |= {f"{protocol}.json": _endpoints(settings, protocol) for protocol in PROTOCOLS}
    return {name: json.dumps(content, indent=1) + "\n" for name, content in texts.items()}


def _endpoints(settings: Settings, protocol: Protocol) -> dict[str, Any]:
    resource = {"@type": f"{TYPES}.config.endpoint.v3.ClusterLoadAssignment", **assignment(settings, protocol)}
    return {"resources": [resource]}


def _bootstrap(settings: Settings, folder: str) -> dict[str, Any]:
    return {
        "node": {"id": "vitbn", "cluster": "vitbn"},
        "admin": {"address": socket("127.0.0.1", settings.admin)},
        "overload_manager": _overload(),
        "static_resources": {
            "listeners": [_listener(settings), *_metrics_listeners(settings)],
            "clusters": [cluster(settings, protocol, folder) for protocol in PROTOCOLS] + _admin_clusters(settings),
        },
    }


def _metrics_listeners(settings: Settings) -> list[dict[str, Any]]:
    """Only statistics leave loopback: Envoy's other administration pages can stop it."""
    if settings.metrics is None:
        return []
    method = {"name": ":method", "string_match": {"exact": "GET"}}
    match = {"path": METRICS_PATH, "headers": [method]}
    host = {"name": "all", "domains": ["*"], "routes": [{"match": match, "route": {"cluster": "admin"}}]}
    manager = {
        "@type": HTTP_MANAGER,
        "stat_prefix": "metrics",
        "request_headers_timeout": f"{HEADERS_S}s",
        "http_filters": [_filter("http.router", {}, "http.router.v3.Router")],
        "route_config": {"name": "metrics", "virtual_hosts": [host]},
    }
    chain = {"filters": [_filter("network.http_connection_manager", manager)]}
    address = socket(settings.host, settings.metrics)
    return [{"name": "metrics", "address": address, "enable_reuse_port": False, "filter_chains": [chain]}]


def _admin_clusters(settings: Settings) -> list[dict[str, Any]]:
    if settings.metrics is None:
        return []
    endpoint = {"endpoint": {"address": socket("127.0.0.1", settings.admin)}}
    assigned = {"cluster_name": "admin", "endpoints": [{"lb_endpoints": [endpoint]}]}
    return [{"name": "admin", "type": "STATIC", "connect_timeout": "1s", "load_assignment": assigned}]


def _overload() -> dict[str, Any]:
    connections = {
        "@type": f"{TYPES}.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        "max_active_downstream_connections": CONNECTIONS,
    }
    heap = {
        "@type": f"{TYPES}.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig",
        "max_heap_size_bytes": HEAP,
    }
    full = [{"name": "envoy.resource_monitors.fixed_heap", "threshold": {"value": 0.9}}]
    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [
            {"name": "envoy.resource_monitors.global_downstream_max_connections", "typed_config": connections},
            {"name": "envoy.resource_monitors.fixed_heap", "typed_config": heap},
        ],
        "actions": [{"name": "envoy.overload_actions.stop_accepting_requests", "triggers": full}],
    }


def _listener(settings: Settings) -> dict[str, Any]:
    first, *others = dict.fromkeys(settings.ports)
    chain: dict[str, Any] = {"filters": [_filter("network.http_connection_manager", _manager(settings))]}
    if settings.tls:
        pair = {
            "certificate_chain": {"filename": str(settings.tls.certificate.resolve())},
            "private_key": {"filename": str(settings.tls.key.resolve())},
        }
        context = {"tls_certificates": [pair], "alpn_protocols": ["h2", "http/1.1"]}
        context["tls_params"] = {"tls_minimum_protocol_version": "TLSv1_2"}
        tls = {"@type": f"{TYPES}.extensions.transport_sockets.tls.v3.DownstreamTlsContext"}
        chain["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {**tls, "common_tls_context": context},
        }
    return {
        "name": "clients",
        "address": socket(settings.host, first),
        "additional_addresses": [{"address": socket(settings.host, port)} for port in others],
        "enable_reuse_port": False,  # else a second proxy gets part of the connections
        "per_connection_buffer_limit_bytes": LIMITS["body"],
        "filter_chains": [chain],
    }


def _manager(settings: Settings) -> dict[str, Any]:
    host = {"name": "all", "domains": ["*"], "routes": routes()}
    return {
        "@type": HTTP_MANAGER,
        "stat_prefix": "clients",
        "codec_type": "AUTO",
        "use_remote_address": True,
        "generate_request_id": False,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "common_http_protocol_options": {
            "idle_timeout": f"{IDLE_S}s",
            "headers_with_underscores_action": "REJECT_REQUEST",
            "max_headers_count": 64,
        },
        "http_protocol_options": {"accept_http_10": True},
        "http2_protocol_options": {"max_concurrent_streams": 256, "initial_connection_window_size": 2**20},
        "max_request_headers_kb": 16,
        "request_headers_timeout": f"{HEADERS_S}s",
        "request_timeout": f"{BODY_S}s",
        "http_filters": _filters(settings),
        "route_config": {"name": "calls", "virtual_hosts": [host]},
    }


def _filters(settings: Settings) -> list[dict[str, Any]]:
    filters = []
    if settings.keys:
        keys = [{"client": client, "key": key} for client, key in settings.keys.items()]
        forwarding = {"header": CLIENT_HEADER, "hide_credentials": True}
        filters.append(
            _filter(
                "http.api_key_auth",
                {"credentials": keys, "key_sources": [{"header": KEY_HEADER}], "forwarding": forwarding},
                "http.api_key_auth.v3.ApiKeyAuth",
            )
        )
    limits = ", ".join(f"{name} = {value}" for name, value in LIMITS.items())
    guard = files("serving.proxy").joinpath("guard.lua").read_text()
    code = {"default_source_code": {"inline_string": f"local LIMITS = {{ {limits} }}\n{guard}"}}
    filters.append(_filter("http.lua", code, "http.lua.v3.Lua"))
    filters.append(_filter("http.buffer", {"max_request_bytes": LIMITS["body"]}, "http.buffer.v3.Buffer"))
    filters.append(_filter("http.router", {}, "http.router.v3.Router"))
    return filters


def _filter(name: str, config: dict[str, Any], kind: str = "") -> dict[str, Any]:
    """`kind`: the filter's type below envoy.extensions.filters, unless in `config`."""
    typed = {"@type": f"{TYPES}.extensions.filters.{kind}"} if kind else {}
    return {"name": f"envoy.filters.{name}", "typed_config": {**typed, **config}}
