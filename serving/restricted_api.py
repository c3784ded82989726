"""Guards a server's control interface with a key: Triton's load call runs any code that a program or web page sends.

In: Triton's arguments. Out: the options by which only requests with a key can load models, map memory or change logs.

Source: triton-inference-server/server, docs/customization_guide/inference_protocols.md, "Limit Endpoint Access".
"""

from __future__ import annotations

from collections.abc import Iterable

from common.addresses import is_loopback
from serving.control_key import HEADER
from serving.parse_triton_arguments import GUARD_OPTIONS, Arguments, LauncherError

# The APIs that change a server. The others: health, metadata, configuration, inference, statistics.
CONTROL_APIS = ("model-repository", "shared-memory", "logging", "trace")
OPEN = "--open-control"  # ours, not Triton's


def options(arguments: Arguments, key: str) -> list[str]:
    """Options that guard with `key` the control APIs without a guard; none for --open-control.

    Raises LauncherError for a server beyond loopback that has --open-control only once.
    """
    times = arguments.words.count(OPEN)
    if times == 1 and (places := exposed(arguments)):
        raise LauncherError(
            f"{OPEN}: expected loopback, found {places[0]}, where others could run code: write {OPEN} twice to allow it"
        )
    if times:
        return []
    unguarded = {
        option: [api for api in CONTROL_APIS if api not in _guarded_apis(arguments.guards(option))]
        for option in GUARD_OPTIONS
    }
    return [f"{option}={','.join(apis)}:{HEADER}={key}" for option, apis in unguarded.items() if apis]


def user_guarded(arguments: Arguments) -> list[str]:
    """The control APIs that the user guards with a key of their own."""
    guards = [guard for option in GUARD_OPTIONS for guard in arguments.guards(option) if f":{HEADER}=" not in guard]
    return [api for api in CONTROL_APIS if api in _guarded_apis(guards)]


def exposed(arguments: Arguments) -> list[str]:
    """The services, HTTP and gRPC, that listen beyond loopback, as "SERVICE at ADDRESS"."""
    hosts = {service: arguments.address(service) for service in ("http", "grpc") if arguments.starts(service)}
    return [f"{service} at {host}" for service, host in hosts.items() if not is_loopback(host.removeprefix("ipv6:"))]


def _guarded_apis(guards: Iterable[str]) -> set[str]:
    """The APIs of values APIS:HEADER=CONTENT."""
    return {api.strip() for guard in guards for api in guard.partition(":")[0].split(",")}
