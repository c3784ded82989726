"""Triton's command-line arguments, read as Triton reads them: of equal options the last counts, and an option may be
abbreviated.

In: the arguments of `tritonserver`. Out: `Arguments`, or LauncherError.
"""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from stat import S_ISDIR
from typing import NoReturn

from common.addresses import join_address
from common.repository import Damaged, check_links, model_dir
from serving.control_key import GRPC_PREFIX
from serving.model_control_client import SPLIT_BY_SHELL

REPOSITORY, REPOSITORY_OPTIONS = "--model-repository", ("--model-repository", "--model-store")
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


class LauncherError(ValueError):
    """No server can start. The message is one line for the user."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LauncherError(message)


class Arguments:
    """The words of a command line and what they mean. URLs are HOST:PORT. Everything may raise LauncherError."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._values, _ = _split(words, PARSED_OPTIONS)

    def last(self, name: str, default: str) -> str:
        """The value of an option; `default` without the option."""
        return [default, *self._values[name]][-1]

    def starts(self, service: str) -> bool:
        """Whether Triton starts the service ("http", "grpc" or "metrics")."""
        return self.last(f"--allow-{service}", "true").lower() not in ("false", "0")

    def address(self, service: str) -> str:
        """Where a service listens, in Triton's spelling."""
        return self.last(f"--{service}-address", "127.0.0.1")

    def port(self, service: str) -> int:
        text = self.last(f"--{service}-port", str(PORTS[service]))
        if not re.fullmatch("[0-9]{1,5}", text) or not 0 < int(text) < 1 << 16:
            raise LauncherError(f"--{service}-port: expected a port, found {text!r}")
        return int(text)

    def url(self, service: str) -> str:
        """Where this machine reaches a service."""
        if not (given := self.address(service)):
            raise LauncherError(f"--{service}-address: expected an address such as 127.0.0.1, found an empty one")
        address = given.removeprefix("ipv6:").strip("[]")
        if service == "http" and ":" in address and not given.startswith("ipv6:"):
            expected = f"--http-address: expected ipv6:{address}"
            raise LauncherError(f"{expected}, found {given}, in which Triton reads no IPv6")
        if service == "grpc" and ":" in address and "[" not in given:
            raise LauncherError(f"--grpc-address: expected [{address}], found {given}: Triton takes its end for a port")
        if service != "grpc" and ":" not in address and not _is_ipv4(address):
            expected = f"--{service}-address: expected an address such as 127.0.0.1"
            raise LauncherError(f"{expected}, found {given}, which Triton looks up for gRPC alone")
        return join_address(address, self.port(service))

    @property
    def http_url(self) -> str:
        return self.url("http")

    @property
    def grpc_url(self) -> str | None:
        """None without gRPC."""
        return self.url("grpc") if self.starts("grpc") else None

    @property
    def control_ports(self) -> list[int]:
        """The ports of HTTP and gRPC, at which clients could change the server."""
        return [self.port(service) for service in ("http", "grpc") if self.starts(service)]

    def listening_urls(self) -> list[str]:
        """The URL of every service that Triton starts, without ports that it shares by option."""
        if not self.repositories:
            return []  # without a repository Triton ends at once, by --help or an error
        shared = {service for service in PORTS if self.last(f"--reuse-{service}-port", "false") in ("true", "1")}
        return [self.url(service) for service in PORTS if self.starts(service) and service not in shared]

    def check_ports(self, *others: int | None) -> None:
        """Raises LauncherError if two services share an address. `others`: the supervisor's ports on loopback."""
        urls = [*self.listening_urls(), *(f"127.0.0.1:{port}" for port in others if port)]
        if repeated := [url for url in urls if urls.count(url) > 1]:
            raise LauncherError(f"expected a port of its own for each service, found {repeated[0]} twice")

    @cached_property
    def repositories(self) -> list[str]:
        return [value for value in self._values[REPOSITORY] if value]

    @cached_property
    def models(self) -> frozenset[str] | None:
        """Names of the models to serve; None: all."""
        if "" in (names := frozenset(self._values["--load-model"])):
            raise LauncherError("--load-model: expected the name of a model or *, found an empty one")
        return None if not names or "*" in names else names

    def serves(self, model: str) -> bool:
        return self.models is None or model in self.models

    def model_dirs(self) -> dict[str, Path]:
        """Returns model -> its folder in the first repository that has the model.

        Raises OSError, and Damaged for a broken link in a repository: with it Triton does not answer its index.
        """
        folders: dict[str, Path] = {}
        for repository in self.repositories:
            check_links(Path(repository))
            for path in sorted(Path(repository).iterdir()):
                if S_ISDIR(path.stat().st_mode) and not path.name.startswith(".") and self.serves(path.name):
                    folders.setdefault(path.name, path)
        return folders

    def folder(self, model: str) -> Path | None:
        """The model's folder in the first repository that has the model, or None."""
        return model_dir(map(Path, self.repositories), model)

    def guards(self, option: str) -> list[str]:
        """The values APIS:HEADER=CONTENT of one of GUARD_OPTIONS."""
        return self._values[option]

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers that give access to calls behind --http-restricted-api."""
        return self._keys("--http-restricted-api")

    @property
    def grpc_headers(self) -> dict[str, str]:
        """Metadata that give access to calls behind --grpc-restricted-protocol."""
        keys = self._keys("--grpc-restricted-protocol")
        return {f"{GRPC_PREFIX}{name.lower()}": key for name, key in keys.items()}

    def _keys(self, option: str) -> dict[str, str]:
        """Returns header -> content."""
        pairs = (guard.partition(":")[2].partition("=") for guard in self.guards(option))
        return {header: content for header, _, content in pairs}

    def check_supervised(self) -> None:
        """Raises LauncherError for words with which a supervisor cannot work."""
        if self.last("--model-control-mode", "explicit") != "explicit":
            raise LauncherError("--supervised needs --model-control-mode=explicit: it loads and unloads models")
        if not self.starts("http"):
            raise LauncherError("--supervised needs HTTP: remove --allow-http=false")
        if not self.repositories:
            raise LauncherError("--supervised needs --model-repository")
        for repository in self.repositories:
            check_repository(repository)
        self.listening_urls()

    def under_supervisor(self, at_start: Sequence[str], complete: bool, memory: str) -> list[str]:
        """The words for Triton under a supervisor.

        at_start: the models to load at the start.
        complete: every config.pbtxt is complete. Else Triton completes them, for which it starts each model once more.
        memory:   prefix for the names of the stubs' shared memory.
        """
        added = ["--model-control-mode=explicit", "--exit-on-error=false", f"--exit-timeout-secs={EXIT_TIMEOUT_S}"]
        added += [BY_PRIORITY, f"--backend-config=python,shm-region-prefix-name={memory}"]
        added += ["--disable-auto-complete-config"] if complete else []
        loads = [f"--load-model={name}" for name in at_start]
        return [*added, *loads, *without(self.words, SUPERVISOR_OPTIONS)]


def without(words: Sequence[str], names: Iterable[str]) -> list[str]:
    """The words but for the options `names`. Raises LauncherError."""
    return _split(words, names)[1]


def _split(words: Sequence[str], names: Iterable[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the values of the options `names`, by option, and all other words."""
    parser = _Parser(add_help=False, argument_default=[])
    for name in names:
        parser.add_argument(name, action="append", dest=REPOSITORY if name in REPOSITORY_OPTIONS else name)
    values, other_words = parser.parse_known_args(list(words))
    return vars(values), other_words


def _is_ipv4(address: str) -> bool:
    """Whether Triton can listen there over HTTP: it binds 255.255.255.255 for everything that inet_addr cannot read."""
    try:
        return bool(socket.inet_aton(address))
    except OSError:
        return False


def check_repository(folder: str) -> None:
    """Raises LauncherError for a folder from which Triton loads nothing."""
    if not Path(folder).is_dir():
        raise LauncherError(f"{folder}: expected a model repository, found no such folder")
    try:
        check_links(Path(folder))
    except Damaged as error:
        raise LauncherError(str(error)) from error
    except OSError as error:
        raise LauncherError(f"{folder}: expected a model repository, found {error.strerror}") from error


def check_name(folder: Path) -> None:
    """Raises LauncherError for a model's name that a shell would split: its load fails, and Triton then never ends."""
    if SPLIT_BY_SHELL.search(folder.name):
        raise LauncherError(f"{folder}: expected a name without blanks and signs of a shell, found {folder.name!r}")
