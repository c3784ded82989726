"""Closes a server's control interface: Triton's load call runs any code that a program or a web page sends to it.

In: Triton's arguments. Out: the options that let only requests with a key load models, map memory or change logs.

Source: triton-inference-server/server, docs/customization_guide/inference_protocols.md, "Limit Endpoint Access".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from serving.arguments import GUARD_OPTIONS, PARSED_OPTIONS, is_enabled, last_value, port_of, split
from serving.control_key import HEADER, is_loopback

# What changes a server: all that Triton can guard except health, metadata, configuration, inference, statistics.
CONTROL = ("model-repository", "shared-memory", "logging", "trace")
OPEN = "--open-control"  # ours, not Triton's


def options(arguments: Sequence[str], key: str) -> list[str]:
    """The options that guard with `key` what `arguments` leave open; none for --open-control. Raises ValueError."""
    if opens_control(arguments):
        return []
    values = _values(arguments)
    left = {option: [each for each in CONTROL if each not in _guarded(values[option])] for option in GUARD_OPTIONS}
    return [f"{option}={','.join(open_)}:{HEADER}={key}" for option, open_ in left.items() if open_]


def theirs(arguments: Sequence[str]) -> list[str]:
    """The control APIs that the user guards with another key."""
    guards = [each for option in GUARD_OPTIONS for each in _values(arguments)[option] if f":{HEADER}=" not in each]
    return [each for each in CONTROL if each in _guarded(guards)]


def opens_control(arguments: Sequence[str]) -> bool:
    """Whether --open-control is given. Raises ValueError for a server beyond loopback, unless it is given twice."""
    times = list(arguments).count(OPEN)
    if times == 1 and (places := exposed(arguments)):
        raise ValueError(
            f"{OPEN}: expected loopback, found {places[0]}, where others could run code: write {OPEN} twice to allow it"
        )
    return times > 0


def exposed(arguments: Sequence[str]) -> list[str]:
    """Where HTTP and gRPC listen beyond loopback, each as "SERVICE at ADDRESS"."""
    values = _values(arguments)
    places = {
        each: last_value(values, f"--{each}-address", "127.0.0.1")
        for each in ("http", "grpc")
        if is_enabled(values, each)
    }
    return [f"{each} at {place}" for each, place in places.items() if not is_loopback(place.removeprefix("ipv6:"))]


def ports(arguments: Sequence[str]) -> list[int]:
    """The ports of HTTP and gRPC. Raises ValueError."""
    values = _values(arguments)
    return [port_of(values, service) for service in ("http", "grpc") if is_enabled(values, service)]


def _values(arguments: Sequence[str]) -> Mapping[str, list[str]]:
    return split(arguments, PARSED_OPTIONS)[0]


def _guarded(guards: Iterable[str]) -> set[str]:
    """Values APIS:HEADER=CONTENT -> the APIs."""
    return {each.strip() for guard in guards for each in guard.partition(":")[0].split(",")}
