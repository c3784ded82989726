"""Checks what must hold before the launcher starts nvidia-pytriton's server: a refusal is one line.

In: Triton's arguments and this process's environment and limits. Out: nothing, or LauncherError.
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
DESCRIPTORS, MORE_DESCRIPTORS = 128, 4096  # a server needs about 70, and one for each connection


class LauncherError(RuntimeError):
    pass


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where the launcher keeps its backends: $XDG_CACHE_HOME/vitbn, else ~/.cache/vitbn.

    Without a home that can be written to, as in a cluster: a folder of this user's in the temporary folder. Raises
    LauncherError if another user has a folder of that name.
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
        held = folder.lstat()
    except OSError as error:
        raise LauncherError(f"{folder}: expected a cache, found {error.strerror}; {CHOOSE_CACHE}") from error
    if not stat.S_ISDIR(held.st_mode) or held.st_uid != os.getuid() or held.st_mode & 0o022:
        raise LauncherError(f"{folder}: expected a folder of this user alone, found another's; {CHOOSE_CACHE}")
    return folder


def check_given(arguments: Sequence[str]) -> None:
    """Raises LauncherError without a repository: Triton says so below a page of log."""
    values, rest = split(arguments, REPOSITORY_OPTIONS)
    if not any(values[option] for option in REPOSITORY_OPTIONS) and "--help" not in rest:
        raise LauncherError("expected --model-repository FOLDER, such as triton_repo, found none")


def check_names(arguments: Sequence[str]) -> None:
    """Raises LauncherError for a model's name that a shell would split: its load never ends."""
    values, _ = split(arguments, [*REPOSITORY_OPTIONS, "--load-model"])
    repositories = [Path(each) for option in REPOSITORY_OPTIONS for each in values[option] if Path(each).is_dir()]
    every = not values["--load-model"] or "*" in values["--load-model"]
    try:
        for path in (path for repository in repositories for path in sorted(repository.iterdir())):
            if path.is_dir() and (every or path.name in values["--load-model"]):
                check_name(path)
    except (ValueError, OSError) as error:
        raise LauncherError(str(error)) from error


def allow_descriptors() -> None:
    """Raises the soft limit as far as needed; raises LauncherError if the hard limit is too low.

    Without descriptors Triton answers nobody and writes 130,000 lines a second.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS:
        soft = MORE_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MORE_DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < DESCRIPTORS:
        raise LauncherError(f"expected a limit of at least {DESCRIPTORS} open files, found {soft}: ulimit -n 1024")
