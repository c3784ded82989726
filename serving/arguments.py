"""Parses Triton's command-line arguments for the launcher and the supervisor.

In: the arguments of `tritonserver`. Out: `ServerOptions`, or ValueError with a message of one line.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISDIR
from typing import NoReturn

from common.repository import model_dir
from serving.control import SPLIT_BY_SHELL
from serving.control_key import GRPC_PREFIX

REPOSITORY_OPTIONS = ("--model-repository", "--model-store")
# Makes Triton respect the priorities of instances; else a standby instance gets every second request.
BY_PRIORITY = "--rate-limit=execution_count"
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
# The supervisor sets these itself.
SUPERVISOR_OPTIONS = ("--model-control-mode", "--load-model", "--exit-on-error", "--exit-timeout-secs")
GUARD_OPTIONS = ("--http-restricted-api", "--grpc-restricted-protocol")
PARSED_OPTIONS = (
    *REPOSITORY_OPTIONS,
    "--model-control-mode",
    "--load-model",
    *GUARD_OPTIONS,
    *(f"--{start}-{service}{end}" for service in PORTS for start, end in (("allow", ""), ("reuse", "-port"))),
    *(f"--{service}-{part}" for service in PORTS for part in ("address", "port")),
)
EXIT_TIMEOUT_S = 3  # 1 s for queued requests, 2 s for a model's two processes, which end one after the other


@dataclass(frozen=True)
class ServerOptions:
    """The options of a supervised server. URLs are HOST:PORT.

    models:       names of the models to serve; None: all.
    passed_on:    the arguments that Triton gets unchanged.
    headers:      HTTP headers that give access to calls behind --http-restricted-api.
    grpc_url:     None without gRPC.
    grpc_headers: metadata that give access to calls behind --grpc-restricted-protocol.
    """

    http_url: str
    repositories: tuple[Path, ...]
    models: frozenset[str] | None
    passed_on: tuple[str, ...]
    headers: dict[str, str] = field(default_factory=dict)
    grpc_url: str | None = None
    grpc_headers: dict[str, str] = field(default_factory=dict)

    def command(self, at_start: Sequence[str], complete: bool, memory: str) -> list[str]:
        """Triton's arguments under a supervisor.

        at_start: the models to load at the start.
        complete: every config.pbtxt is complete. Else Triton completes them, for which it starts each model once more.
        memory:   prefix for the names of the stubs' shared memory.
        """
        added = ["--model-control-mode=explicit", "--exit-on-error=false", f"--exit-timeout-secs={EXIT_TIMEOUT_S}"]
        added += [BY_PRIORITY, f"--backend-config=python,shm-region-prefix-name={memory}"]
        added += ["--disable-auto-complete-config"] if complete else []
        return [*added, *(f"--load-model={name}" for name in at_start), *self.passed_on]

    def model_dirs(self) -> dict[str, Path]:
        """Returns model -> its folder in the first repository that has the model.

        Raises OSError, also for a broken link in a repository: with a broken link Triton does not answer its index.
        """
        folders: dict[str, Path] = {}
        for repository in self.repositories:
            for path in sorted(repository.iterdir()):
                is_served = not path.name.startswith(".") and (not self.models or path.name in self.models)
                if S_ISDIR(path.stat().st_mode) and is_served:
                    folders.setdefault(path.name, path)
        return folders

    def folder(self, model: str) -> Path | None:
        """The model's folder in the first repository that has the model, or None."""
        return model_dir(self.repositories, model)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def split(arguments: Sequence[str], names: Iterable[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the values of the options `names`, by option, and all other words. Raises ValueError."""
    parser = _Parser(allow_abbrev=False, add_help=False, argument_default=[])
    for name in names:
        parser.add_argument(name, action="append", dest=name)
    values, other_words = parser.parse_known_args(list(arguments))
    return vars(values), other_words


def parse(arguments: Sequence[str]) -> ServerOptions:
    """Parses the arguments of a supervised server. Raises ValueError."""
    values, _ = split(arguments, PARSED_OPTIONS)
    if values["--model-control-mode"] not in ([], ["explicit"]):
        raise ValueError("--supervised needs --model-control-mode=explicit: it loads and unloads models")
    if not is_enabled(values, "http"):
        raise ValueError("--supervised needs HTTP: remove --allow-http=false")
    repositories = tuple(Path(value) for name in REPOSITORY_OPTIONS for value in values[name] if value)
    if not repositories:
        raise ValueError("--supervised needs --model-repository")
    for repository in repositories:
        if not repository.is_dir():
            raise ValueError(f"{repository}: expected a model repository, found no such folder")
    models = frozenset(values["--load-model"])
    grpc_keys = _keys(values["--grpc-restricted-protocol"])
    return ServerOptions(
        http_url=_url(values, "http"),
        repositories=repositories,
        models=None if not models or "*" in models else models,
        passed_on=tuple(split(arguments, SUPERVISOR_OPTIONS)[1]),
        headers=_keys(values["--http-restricted-api"]),
        grpc_url=_url(values, "grpc") if is_enabled(values, "grpc") else None,
        grpc_headers={f"{GRPC_PREFIX}{name.lower()}": key for name, key in grpc_keys.items()},
    )


def listening_urls(arguments: Sequence[str]) -> list[str]:
    """HOST:PORT of every service that Triton starts, without ports that it shares by option. Raises ValueError."""
    values, _ = split(arguments, PARSED_OPTIONS)
    if not any(values[name] for name in REPOSITORY_OPTIONS):
        return []  # without a repository Triton ends at once, by --help or an error
    shared = {service for service in PORTS if last_value(values, f"--reuse-{service}-port", "false") in ("true", "1")}
    return [_url(values, service) for service in PORTS if is_enabled(values, service) and service not in shared]


def last_value(values: Mapping[str, Sequence[str]], name: str, default: str) -> str:
    """The last value of an option, as Triton takes the last; `default` without the option."""
    return [default, *values[name]][-1]


def is_enabled(values: Mapping[str, Sequence[str]], service: str) -> bool:
    """Whether Triton starts the service ("http", "grpc" or "metrics")."""
    return last_value(values, f"--allow-{service}", "true").lower() not in ("false", "0")


def _url(values: Mapping[str, Sequence[str]], service: str) -> str:
    given = last_value(values, f"--{service}-address", "127.0.0.1")
    address = given.removeprefix("ipv6:").strip("[]")
    if service == "http" and ":" in address and not given.startswith("ipv6:"):
        raise ValueError(f"--http-address: expected ipv6:{address}, found {given}, in which Triton reads no IPv6")
    if service == "grpc" and ":" in address and "[" not in given:
        raise ValueError(f"--grpc-address: expected [{address}], found {given}: Triton takes its end for a port")
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    address = f"[{address}]" if ":" in address else address
    return f"{address}:{port_of(values, service)}"


def port_of(values: Mapping[str, Sequence[str]], service: str) -> int:
    """The port of a service. Raises ValueError."""
    text = last_value(values, f"--{service}-port", str(PORTS[service]))
    if not re.fullmatch("[0-9]{1,5}", text) or not 0 < int(text) < 1 << 16:
        raise ValueError(f"--{service}-port: expected a port, found {text!r}")
    return int(text)


def check_name(folder: Path) -> None:
    """Raises ValueError for a model's name that a shell would split: its load fails, and Triton then never ends."""
    if SPLIT_BY_SHELL.search(folder.name):
        raise ValueError(f"{folder}: expected a name without blanks and signs of a shell, found {folder.name!r}")


def _keys(guards: Iterable[str]) -> dict[str, str]:
    """Returns header -> content for values APIS:HEADER=CONTENT of a guard option."""
    pairs = (guard.partition(":")[2].partition("=") for guard in guards)
    return {header: content for header, _, content in pairs}
