"""Checks before the launcher starts nvidia-pytriton's server, so that a mistake is one line and no page of log.

In: Triton's arguments, this process's environment and limits. Out: nothing, or LauncherError.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from serving.control_key import belongs_to_user, temporary_folder
from serving.parse_triton_arguments import Arguments, LauncherError, check_name, check_repository

CHOOSE_CACHE = "XDG_CACHE_HOME names another folder"
LEAST_DESCRIPTORS, RAISED_DESCRIPTORS = 128, 4096  # a server needs about 70, and 1 per connection


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
    folder = temporary_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise LauncherError(f"{folder}: expected a cache, found {error.strerror}; {CHOOSE_CACHE}") from error
    if not belongs_to_user(folder) or folder.stat().st_mode & 0o022:
        raise LauncherError(f"{folder}: expected a folder of this user alone, found another's; {CHOOSE_CACHE}")
    return folder


def check_repositories(arguments: Arguments) -> None:
    """Raises LauncherError without a repository, and for a name of a model to load that a shell would split.

    Triton's own message would stand below a page of log, and a load of such a name never ends.
    """
    if not arguments.repositories and "--help" not in arguments.words:
        raise LauncherError("expected --model-repository FOLDER, such as triton_repo, found none")
    folders = [folder for folder in arguments.repositories if "://" not in folder]
    for folder in folders:
        check_repository(folder)
    try:
        for path in (path for folder in folders for path in sorted(Path(folder).iterdir())):
            if path.is_dir() and arguments.serves(path.name):
                check_name(path)
    except OSError as error:
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
