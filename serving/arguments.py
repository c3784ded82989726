"""Triton's arguments as the supervisor reads them: where the server listens, which repositories and models it serves.

In: the arguments of `tritonserver`. Out: `ServerOptions`, or ValueError with one line for what cannot be supervised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORIES = ("--model-repository", "--model-store")
OWN = ("--model-control-mode", "--load-model", "--exit-on-error", "--exit-timeout-secs")  # the supervisor sets these
FLAGS = ("--disable-auto-complete-config",)
EXIT_TIMEOUT_S = 2  # for requests in flight; Triton's queue holds none longer than a second


@dataclass(frozen=True)
class ServerOptions:
    """`http_url` is HOST:PORT; `headers` open what --http-restricted-api guards; `models` None: all models."""

    http_url: str
    repositories: tuple[Path, ...]
    models: frozenset[str] | None
    rest: tuple[str, ...]
    headers: dict[str, str] = field(default_factory=dict)

    def command(self, at_start: Sequence[str], complete: bool) -> list[str]:
        """Arguments for a server that loads the models `at_start` and stays up when one is broken.

        `complete` configurations load in half the time: Triton need not start each model to ask for the rest.
        """
        own = ["--model-control-mode=explicit", "--exit-on-error=false", f"--exit-timeout-secs={EXIT_TIMEOUT_S}"]
        own += ["--disable-auto-complete-config"] if complete else []
        return [*own, *(f"--load-model={name}" for name in at_start), *self.rest]

    def model_dirs(self) -> dict[str, Path]:
        """Name -> folder of every model to serve; the first repository wins."""
        folders: dict[str, Path] = {}
        for repository in self.repositories:
            for path in sorted(repository.iterdir()):
                if path.is_dir() and not path.name.startswith(".") and (not self.models or path.name in self.models):
                    folders.setdefault(path.name, path)
        return folders


def parse(arguments: Sequence[str]) -> ServerOptions:
    """Reads `arguments`; raises ValueError."""
    pairs = list(_pairs(arguments))
    values = {name: value for name, value, _ in pairs}
    if values.get("--model-control-mode", "explicit") != "explicit":
        raise ValueError("--supervised needs --model-control-mode=explicit: it loads and unloads models")
    if values.get("--allow-http", "true").lower() in ("false", "0"):
        raise ValueError("--supervised needs HTTP: remove --allow-http=false")
    repositories = tuple(Path(value) for name, value, _ in pairs if name in REPOSITORIES)
    if not repositories:
        raise ValueError("--supervised needs --model-repository")
    for repository in repositories:
        if not repository.is_dir():
            raise ValueError(f"{repository}: expected a model repository, found no such folder")
    models = frozenset(value for name, value, _ in pairs if name == "--load-model")
    address = values.get("--http-address", "127.0.0.1")
    address = "127.0.0.1" if address in ("0.0.0.0", "::") else address
    guards = [value.partition(":")[2].partition("=") for name, value, _ in pairs if name == "--http-restricted-api"]
    return ServerOptions(
        http_url=f"{address}:{values.get('--http-port', '8000')}",
        repositories=repositories,
        models=None if not models or "*" in models else models,
        rest=tuple(word for name, _, words in pairs if name not in OWN for word in words),
        headers={key: value for key, _, value in guards},
    )


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(option, value, the words that say so) of `--option=value`, `--option value` and flags."""
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if not equals and name not in FLAGS and words and not words[0].startswith("-"):
            value = words.pop(0)
            yield name, value, (word, value)
        else:
            yield name, value, (word,)
