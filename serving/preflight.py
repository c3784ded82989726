"""Checks before the launcher starts nvidia-pytriton's server, so that a mistake is one line and no page of log.

In: Triton's arguments, this process's environment and limits. Out: nothing, or LauncherError.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from common.repository import CONFIG_FILE, Damaged, read_config, served_versions, versions
from serving.control_key import belongs_to_user, temporary_folder
from serving.parse_triton_arguments import Arguments, LauncherError, check_name, check_repository

CHOOSE_CACHE = "XDG_CACHE_HOME names another folder"
LEAST_DESCRIPTORS, RAISED_DESCRIPTORS = 128, 4096  # a server needs about 70, and 1 per connection
SHARED_MEMORY = Path("/dev/shm")
PROCESS_BYTES = 1 << 20  # of shared memory, for each process of a model: shm-default-byte-size of Triton 2.51
AMPLE_BYTES = 1 << 30  # enough for every repository, so none is read


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
    for folder in arguments.repositories:
        if "://" not in folder:
            check_repository(folder)
    try:
        for path in _model_folders(arguments):
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


def check_shared_memory(arguments: Arguments) -> None:
    """Raises LauncherError if the processes of the models cannot have their shared memory.

    Triton's own message stands in a page of log, or a signal ends Triton before it.
    """
    if not os.access(SHARED_MEMORY, os.W_OK):
        raise LauncherError(f"{SHARED_MEMORY}: expected a writable folder for shared memory, found none")
    space = os.statvfs(SHARED_MEMORY)
    free = space.f_bavail * space.f_frsize
    chosen = any("shm-default-byte-size" in word for word in arguments.words)  # by the user, perhaps less
    if chosen or not space.f_blocks or free >= AMPLE_BYTES:  # without a limit it has no blocks
        return
    processes = sum(map(_processes, _model_folders(arguments)))
    if free < processes * PROCESS_BYTES:
        needed = f"expected {processes} MB of shared memory for {processes} processes of models"
        raise LauncherError(f"{SHARED_MEMORY}: {needed}, found {free >> 20} MB free (Docker: --shm-size)")


def _model_folders(arguments: Arguments) -> list[Path]:
    """The folders of the models that the server loads from local repositories. Raises OSError."""
    folders = [Path(folder) for folder in arguments.repositories if "://" not in folder]
    paths = [path for folder in folders for path in sorted(folder.iterdir())]
    return [path for path in paths if path.is_dir() and arguments.serves(path.name)]


def _processes(folder: Path) -> int:
    """The processes that a model starts at least; 0 for a model that does not load."""
    try:
        config = read_config(folder / CONFIG_FILE)
    except Damaged:
        return 0
    instances = sum(group.count or 1 for group in config.instance_group) or 1
    return instances * len(served_versions(config, versions(folder)))
