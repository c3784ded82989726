"""Reads Triton's arguments for the launcher and the supervisor.

In: the arguments of `tritonserver`. Out: `ServerOptions`, or ValueError in one line.
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
BY_PRIORITY = "--rate-limit=execution_count"  # else a standby instance gets every second request
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
OWN = ("--model-control-mode", "--load-model", "--exit-on-error", "--exit-timeout-secs")  # the supervisor sets these
GUARDS = ("--http-restricted-api", "--grpc-restricted-protocol")
READ = (
    *REPOSITORY_OPTIONS,
    "--model-control-mode",
    "--load-model",
    *GUARDS,
    *(f"--{start}-{service}{end}" for service in PORTS for start, end in (("allow", ""), ("reuse", "-port"))),
    *(f"--{service}-{part}" for service in PORTS for part in ("address", "port")),
)
EXIT_TIMEOUT_S = 3  # one for queued requests, two for a model's two processes, which end one after the other


@dataclass(frozen=True)
class ServerOptions:
    """URLs are HOST:PORT, `grpc_url` None without gRPC; `models` None: all models; `rest`: for Triton unchanged.

    `headers` open calls behind --http-restricted-api, `grpc_headers` behind --grpc-restricted-protocol.
    """

    http_url: str
    repositories: tuple[Path, ...]
    models: frozenset[str] | None
    rest: tuple[str, ...]
    headers: dict[str, str] = field(default_factory=dict)
    grpc_url: str | None = None
    grpc_headers: dict[str, str] = field(default_factory=dict)

    def command(self, at_start: Sequence[str], complete: bool, memory: str) -> list[str]:
        """Triton's arguments under a supervisor; `at_start`: the models to load.

        `complete`: Triton need not fill in fields of config.pbtxt, for which it would start every model once more.
        `memory`: prefix of the names of the stubs' shared memory.
        """
        ours = ["--model-control-mode=explicit", "--exit-on-error=false", f"--exit-timeout-secs={EXIT_TIMEOUT_S}"]
        ours += [BY_PRIORITY, f"--backend-config=python,shm-region-prefix-name={memory}"]
        ours += ["--disable-auto-complete-config"] if complete else []
        return [*ours, *(f"--load-model={name}" for name in at_start), *self.rest]

    def model_dirs(self) -> dict[str, Path]:
        """Model -> its folder in the first repository that has it.

        Raises OSError, also for a link that leads nowhere: with such a link Triton answers no index.
        """
        folders: dict[str, Path] = {}
        for repository in self.repositories:
            for path in sorted(repository.iterdir()):
                wanted = not path.name.startswith(".") and (not self.models or path.name in self.models)
                if S_ISDIR(path.stat().st_mode) and wanted:
                    folders.setdefault(path.name, path)
        return folders

    def folder(self, model: str) -> Path | None:
        """The model's folder in the first repository that has it, or None."""
        return model_dir(self.repositories, model)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def split(arguments: Sequence[str], names: Iterable[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the values of the options `names`, and all other words."""
    parser = _Parser(allow_abbrev=False, add_help=False, argument_default=[])
    for name in names:
        parser.add_argument(name, action="append", dest=name)
    values, rest = parser.parse_known_args(list(arguments))
    return vars(values), rest


def parse(arguments: Sequence[str]) -> ServerOptions:
    """Reads the arguments of a supervised server. Raises ValueError."""
    values, _ = split(arguments, READ)
    if values["--model-control-mode"] not in ([], ["explicit"]):
        raise ValueError("--supervised needs --model-control-mode=explicit: it loads and unloads models")
    if not allowed(values, "http"):
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
        rest=tuple(split(arguments, OWN)[1]),
        headers=_keys(values["--http-restricted-api"]),
        grpc_url=_url(values, "grpc") if allowed(values, "grpc") else None,
        grpc_headers={f"{GRPC_PREFIX}{name.lower()}": key for name, key in grpc_keys.items()},
    )


def listening(arguments: Sequence[str]) -> list[str]:
    """HOST:PORT of every service, without ports that another server may share. Raises ValueError."""
    values, _ = split(arguments, READ)
    if not any(values[name] for name in REPOSITORY_OPTIONS):
        return []  # Triton stops at once: --help, or an error
    shared = {service for service in PORTS if last(values, f"--reuse-{service}-port", "false") in ("true", "1")}
    return [_url(values, service) for service in PORTS if allowed(values, service) and service not in shared]


def last(values: Mapping[str, Sequence[str]], name: str, default: str) -> str:
    """The last value of an option, which Triton takes, or `default`."""
    return [default, *values[name]][-1]


def allowed(values: Mapping[str, Sequence[str]], service: str) -> bool:
    return last(values, f"--allow-{service}", "true").lower() not in ("false", "0")


def _url(values: Mapping[str, Sequence[str]], service: str) -> str:
    given = last(values, f"--{service}-address", "127.0.0.1")
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
    text = last(values, f"--{service}-port", str(PORTS[service]))
    if not re.fullmatch("[0-9]{1,5}", text) or not 0 < int(text) < 1 << 16:
        raise ValueError(f"--{service}-port: expected a port, found {text!r}")
    return int(text)


def check_name(folder: Path) -> None:
    """Raises ValueError for a name that a shell would split: Triton cannot load such a model, and then never ends."""
    if SPLIT_BY_SHELL.search(folder.name):
        raise ValueError(f"{folder}: expected a name without blanks and signs of a shell, found {folder.name!r}")


def _keys(guards: Iterable[str]) -> dict[str, str]:
    """Values APIS:HEADER=CONTENT -> content by header."""
    pairs = (guard.partition(":")[2].partition("=") for guard in guards)
    return {header: content for header, _, content in pairs}
