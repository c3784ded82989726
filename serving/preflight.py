"""Checks before the launcher starts nvidia-pytriton's server, so that a mistake is one line and no page of log.

In: Triton's arguments, this process's environment and limits. Out: nothing, or LauncherError.
"""

from __future__ import annotations

import os
import resource
import stat
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from serving.arguments import REPOSITORY_OPTIONS, check_name, split

CHOOSE_CACHE = "XDG_CACHE_HOME names another folder"
LEAST_DESCRIPTORS, RAISED_DESCRIPTORS = 128, 4096  # a server needs about 70, and 1 per connection


class LauncherError(RuntimeError):
    """No server can start. The message is one line for the user."""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder where the launcher keeps its backends: $XDG_CACHE_HOME/vitbn, else ~/.cache/vitbn.

    Without a writable home, as in a cluster: a folder of this user in the temporary folder. Raises LauncherError if
    another user could change that folder.
    """
    if chosen := environment.get("XDG_CACHE_HOME"):
        return Path(chosen, "vitbn")
    if home := environment.get("HOME"):
        with suppress(OSError):
            (cache := Path(home, ".cache", "vitbn")).mkdir(parents=True, exist_ok=True)
            if os.access(cache, os.W_OK):
                return cache
    folder = Path(tempfile.gettempdir(), f"vitbn-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise LauncherError(f"{folder}: expected a cache, found {error.strerror}; {CHOOSE_CACHE}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise LauncherError(f"{folder}: expected a folder of this user alone, found another's; {CHOOSE_CACHE}")
    return folder


def check_has_repository(arguments: Sequence[str]) -> None:
    """Raises LauncherError without --model-repository: Triton's message would stand below a page of log."""
    values, other_words = split(arguments, REPOSITORY_OPTIONS)
    if not any(values[option] for option in REPOSITORY_OPTIONS) and "--help" not in other_words:
        raise LauncherError("expected --model-repository FOLDER, such as triton_repo, found none")


def check_names(arguments: Sequence[str]) -> None:
    """Raises LauncherError for a name of a model to load that a shell would split: such a load never ends."""
    values, _ = split(arguments, [*REPOSITORY_OPTIONS, "--load-model"])
    repositories = [Path(folder) for option in REPOSITORY_OPTIONS for folder in values[option]]
    loads_all = not values["--load-model"] or "*" in values["--load-model"]
    try:
        for repository in (repository for repository in repositories if repository.is_dir()):
            for path in sorted(repository.iterdir()):
                if path.is_dir() and (loads_all or path.name in values["--load-model"]):
                    check_name(path)
    except (ValueError, OSError) as error:
        raise LauncherError(str(error)) from error


def allow_descriptors() -> None:
    """Raises the soft limit of open files if it is too low. Raises LauncherError if the hard limit is too low.

    Without free descriptors Triton answers no request and writes 130,000 lines of log a second.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < LEAST_DESCRIPTORS:
        soft = RAISED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, RAISED_DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < LEAST_DESCRIPTORS:
        raise LauncherError(
            f"expected a limit of at least {LEAST_DESCRIPTORS} open files, found {soft}: ulimit -n 1024"
        )
