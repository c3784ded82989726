"""Guards a server's control interface with a key: Triton's load call runs any code that a program or web page sends.

In: Triton's arguments. Out: the options by which only requests with a key can load models, map memory or change logs.

Source: triton-inference-server/server, docs/customization_guide/inference_protocols.md, "Limit Endpoint Access".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from serving.arguments import GUARD_OPTIONS, PARSED_OPTIONS, is_enabled, last_value, port_of, split
from serving.control_key import HEADER, is_loopback

# The APIs that change a server. The others: health, metadata, configuration, inference, statistics.
CONTROL_APIS = ("model-repository", "shared-memory", "logging", "trace")
OPEN = "--open-control"  # ours, not Triton's


def options(arguments: Sequence[str], key: str) -> list[str]:
    """Options that guard with `key` the control APIs without a guard; none for --open-control. Raises ValueError."""
    if opens_control(arguments):
        return []
    values = _values(arguments)
    unguarded = {
        option: [api for api in CONTROL_APIS if api not in _guarded_apis(values[option])] for option in GUARD_OPTIONS
    }
    return [f"{option}={','.join(apis)}:{HEADER}={key}" for option, apis in unguarded.items() if apis]


def user_guarded(arguments: Sequence[str]) -> list[str]:
    """The control APIs that the user guards with a key of their own."""
    values = _values(arguments)
    guards = [guard for option in GUARD_OPTIONS for guard in values[option] if f":{HEADER}=" not in guard]
    return [api for api in CONTROL_APIS if api in _guarded_apis(guards)]


def opens_control(arguments: Sequence[str]) -> bool:
    """Whether --open-control is given. Raises ValueError for a server beyond loopback that has the option only once."""
    times = list(arguments).count(OPEN)
    if times == 1 and (places := exposed(arguments)):
        raise ValueError(
            f"{OPEN}: expected loopback, found {places[0]}, where others could run code: write {OPEN} twice to allow it"
        )
    return times > 0


def exposed(arguments: Sequence[str]) -> list[str]:
    """The services, HTTP and gRPC, that listen beyond loopback, as "SERVICE at ADDRESS"."""
    values = _values(arguments)
    services = [service for service in ("http", "grpc") if is_enabled(values, service)]
    hosts = {service: last_value(values, f"--{service}-address", "127.0.0.1") for service in services}
    return [f"{service} at {host}" for service, host in hosts.items() if not is_loopback(host.removeprefix("ipv6:"))]


def ports(arguments: Sequence[str]) -> list[int]:
    """The ports of HTTP and gRPC. Raises ValueError."""
    values = _values(arguments)
    return [port_of(values, service) for service in ("http", "grpc") if is_enabled(values, service)]


def _values(arguments: Sequence[str]) -> Mapping[str, list[str]]:
    return split(arguments, PARSED_OPTIONS)[0]


def _guarded_apis(guards: Iterable[str]) -> set[str]:
    """The APIs of values APIS:HEADER=CONTENT."""
    return {api.strip() for guard in guards for api in guard.partition(":")[0].split(",")}
