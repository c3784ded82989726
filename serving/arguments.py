"""Triton's arguments, as the supervisor needs them.

In: the arguments of `tritonserver`. Out: `ServerOptions`, or ValueError in one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from serving.launcher import BY_PRIORITY

REPOSITORIES = ("--model-repository", "--model-store")
OWN = ("--model-control-mode", "--load-model", "--exit-on-error", "--exit-timeout-secs")  # the supervisor sets these
FLAGS = ("--disable-auto-complete-config",)
GRPC_KEY_PREFIX = "triton-grpc-protocol-"
EXIT_TIMEOUT_S = 2  # for open requests; a request queues for at most a second


@dataclass(frozen=True)
class ServerOptions:
    """URLs are HOST:PORT, `grpc_url` None without gRPC; `models` None: all models.

    `headers` open calls behind --http-restricted-api, `grpc_headers` behind --grpc-restricted-protocol.
    """

    http_url: str
    repositories: tuple[Path, ...]
    models: frozenset[str] | None
    rest: tuple[str, ...]
    headers: dict[str, str] = field(default_factory=dict)
    grpc_url: str | None = None
    grpc_headers: dict[str, str] = field(default_factory=dict)

    def command(self, at_start: Sequence[str], complete: bool) -> list[str]:
        """If configurations are `complete`, Triton need not start models to complete them: half the loading time."""
        own = ["--model-control-mode=explicit", "--exit-on-error=false", f"--exit-timeout-secs={EXIT_TIMEOUT_S}"]
        own += [BY_PRIORITY]
        own += ["--disable-auto-complete-config"] if complete else []
        return [*own, *(f"--load-model={name}" for name in at_start), *self.rest]

    def model_dirs(self) -> dict[str, Path]:
        """Name -> folder; the first repository wins."""
        folders: dict[str, Path] = {}
        for repository in self.repositories:
            for path in sorted(repository.iterdir()):
                if path.is_dir() and not path.name.startswith(".") and (not self.models or path.name in self.models):
                    folders.setdefault(path.name, path)
        return folders

    def folder(self, model: str) -> Path | None:
        """The first repository wins."""
        return next((each / model for each in self.repositories if (each / model).is_dir()), None)


def parse(arguments: Sequence[str]) -> ServerOptions:
    pairs = list(_pairs(arguments))
    values = {name: value for name, value, _ in pairs}
    if values.get("--model-control-mode", "explicit") != "explicit":
        raise ValueError("--supervised needs --model-control-mode=explicit: it loads and unloads models")
    if not _allowed(values, "http"):
        raise ValueError("--supervised needs HTTP: remove --allow-http=false")
    repositories = tuple(Path(value) for name, value, _ in pairs if name in REPOSITORIES)
    if not repositories:
        raise ValueError("--supervised needs --model-repository")
    for repository in repositories:
        if not repository.is_dir():
            raise ValueError(f"{repository}: expected a model repository, found no such folder")
    models = frozenset(value for name, value, _ in pairs if name == "--load-model")
    return ServerOptions(
        http_url=_url(values, "http", "8000"),
        repositories=repositories,
        models=None if not models or "*" in models else models,
        rest=tuple(word for name, _, words in pairs if name not in OWN for word in words),
        headers=_keys(pairs, "--http-restricted-api"),
        grpc_url=_url(values, "grpc", "8001") if _allowed(values, "grpc") else None,
        grpc_headers={
            f"{GRPC_KEY_PREFIX}{name.lower()}": key for name, key in _keys(pairs, "--grpc-restricted-protocol").items()
        },
    )


def _allowed(values: Mapping[str, str], service: str) -> bool:
    return values.get(f"--allow-{service}", "true").lower() not in ("false", "0")


def _url(values: Mapping[str, str], service: str, port: str) -> str:
    given = values.get(f"--{service}-address", "127.0.0.1")
    address = given.removeprefix("ipv6:").strip("[]")
    if service == "http" and ":" in address and not given.startswith("ipv6:"):
        raise ValueError(f"--http-address: expected ipv6:{address}, found {given}, in which Triton reads no IPv6")
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    address = f"[{address}]" if ":" in address else address
    return f"{address}:{port_of(values, service, port)}"


def port_of(values: Mapping[str, str], service: str, default: str) -> int:
    """Raises ValueError."""
    text = values.get(f"--{service}-port", default)
    if not re.fullmatch("[0-9]{1,5}", text) or not 0 < int(text) < 1 << 16:
        raise ValueError(f"--{service}-port: expected a port, found {text!r}")
    return int(text)


def _keys(pairs: Iterable[tuple[str, str, tuple[str, ...]]], option: str) -> dict[str, str]:
    """Headers in values APIS:HEADER=CONTENT."""
    guards = (value.partition(":")[2].partition("=") for name, value, _ in pairs if name == option)
    return {key: value for key, _, value in guards}


def split(arguments: Sequence[str], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The values of `names`; the words of all other options."""
    pairs = list(_pairs(arguments))
    values = {name: value for name, value, _ in pairs if name in names}
    return values, [word for name, _, words in pairs if name not in names for word in words]


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(option, value, both as words)."""
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if not equals and name not in FLAGS and words and not words[0].startswith("-"):
            value = words.pop(0)
            yield name, value, (word, value)
        else:
            yield name, value, (word,)
