"""Decides which versions of a model are served, by their files and by their loads and answers.

In: the repositories; failed loads and wrong answers. Out: a `Plan` per model. A `Versions` object outlives the server:
it remembers the refused versions when the supervisor starts another server.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from common.repository import Damaged, has_manifest, versions
from serving.events import Events
from serving.healing import ServerLost
from serving.intact_versions import Plan, check_version, plan
from serving.parse_triton_arguments import Arguments
from serving.prober import Failure

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0  # before refused loads are tried again
LOOK_S = 2.0  # between two looks at the files of models without a served version
FileState = tuple[object, ...] | None  # changes with the files of a folder; None without files


@dataclass
class RefusedVersions:
    """A model's versions that are not served.

    loads:   version -> reason, of versions that the server refused to load. They are tried again, as after a full disk.
    answers: version -> reason, of versions that answered wrong or too slowly. They are not tried again.
    failed:  versions whose load has failed once, perhaps because their process was killed, without an answer since.
    pause_s: the next pause before refused loads are tried again.
    due_s:   when to try them again, by the monotonic clock; None: not planned.
    """

    loads: dict[int, str] = field(default_factory=dict)
    answers: dict[int, str] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    pause_s: float = FIRST_PAUSE_S
    due_s: float | None = None


class Versions:
    """Plans each model from its folder and its refused versions. Only the supervisor's thread uses it."""

    def __init__(self, arguments: Arguments, events: Events) -> None:
        self._arguments, self._events = arguments, events
        self._refused = defaultdict[str, RefusedVersions](RefusedVersions)
        # (model, version) -> file state at the last check; model without a served version -> file state
        self._checked: dict[tuple[str, int], FileState] = {}
        self._unserved: dict[str, FileState] = {}
        self._looked_s = 0.0

    def plans(self) -> dict[str, Plan]:
        """The plans for a start. Raises ServerLost for an unreadable repository, such as a lost network folder."""
        try:
            return {name: self._plan_for_start(name) for name in self._arguments.model_dirs()}
        except Damaged as error:
            raise ServerLost("blocked", str(error)) from error
        except OSError as error:
            text = f"{error.filename}: expected a model repository, found {error.strerror}"
            raise ServerLost("blocked", text) from error

    def _plan_for_start(self, name: str) -> Plan:
        """The model's plan. If only refused versions are left, they are due after their pause, not at the start.

        A refused load would end the start, and a load that loses a process would end the server.
        """
        current, refused = self.plan(name), self._refused[name]
        if current.versions == () and refused.loads:
            refused.due_s = refused.due_s or time.monotonic()
        return current

    def plan(self, name: str) -> Plan:
        """Plans a model anew; an operator may have loaded or removed the model since the start."""
        folder, refused = self._arguments.folder(name), self._refused[name]
        if folder is None:
            return Plan(name, None)
        # Read before the check of the hashes: a file that changes during the check is checked again.
        version_states = {number: _file_state(folder / str(number)) for number in _present(folder)}
        model_state = _file_state(folder)
        current = plan(folder, refused.loads | refused.answers)
        self._checked |= {(name, number): version_states.get(number) for number in current.versions or ()}
        self._unserved.pop(name, None)
        if current.versions == ():
            self._unserved[name] = model_state
        return current

    def load_failed(self, name: str, number: int, reason: str = "the server refuses it") -> Plan:
        """Call it after a failed load of version `number`. Returns the plan, after a second failure without it.

        If no version is left, refused loads are due again after a pause, which doubles each time.
        """
        refused = self._refused[name]
        if number not in refused.failed:
            refused.failed.add(number)
            return self.plan(name)
        refused.loads[number] = f"expected a version that loads, {reason}"
        current = self.replan(name)
        if not current.versions:
            refused.due_s = time.monotonic() + refused.pause_s
            refused.pause_s = min(2 * refused.pause_s, LONGEST_PAUSE_S)
        return current

    def answered(self, served: Iterable[tuple[str, int]]) -> None:
        """Call it with the (model, version) that answer right: a later failed load is their first."""
        for name, number in served:
            self._refused[name].failed.discard(number)

    def replan(self, name: str, wrong: Mapping[int, str] | None = None) -> Plan:
        """Gives up the `wrong` versions (version -> reason), plans the model anew and logs the plan."""
        self._refused[name].answers |= wrong or {}
        current = self.plan(name)
        self._events.planned(name, current.versions or (), current.problems)
        return current

    def has_others(self, name: str, slow: Mapping[int, str]) -> bool:
        """Whether a version can be served if the `slow` versions are given up."""
        folder, refused = self._arguments.folder(name), self._refused[name]
        return bool(slow and folder and plan(folder, {**refused.loads, **refused.answers, **slow}).versions)

    def loaded(self, name: str) -> None:
        """Call it after a successful load: a later refused load waits for the shortest pause again."""
        self._refused[name].pause_s, self._refused[name].due_s = FIRST_PAUSE_S, None

    def due(self) -> list[str]:
        """The models to load now, each only once: their pause is over, or their damaged files have changed."""
        now = time.monotonic()
        due = [name for name, refused in self._refused.items() if refused.due_s and refused.due_s < now]
        for name in due:
            self._refused[name].due_s = None
            self._refused[name].loads.clear()
        return [*due, *self._changed()]

    def _changed(self) -> list[str]:
        """The models without a served version whose files have changed since the plan."""
        if time.monotonic() - self._looked_s < LOOK_S:
            return []
        self._looked_s = time.monotonic()
        folders = {name: self._arguments.folder(name) for name in self._unserved}
        changed = [name for name, folder in folders.items() if folder and _file_state(folder) != self._unserved[name]]
        for name in changed:
            del self._unserved[name]
        return changed

    def forget(self) -> None:
        """Forgets refused versions, so that the next server tries them again."""
        self._refused.clear()

    def unchecked(self, served: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """The served (model, version) whose files have changed since their last check."""
        folders = {version: self._arguments.folder(version[0]) for version in served}
        states = {
            (name, number): _file_state(folder and folder / str(number)) for (name, number), folder in folders.items()
        }
        return [version for version, state in states.items() if state not in (None, self._checked.get(version))]

    def check_files(self, name: str, number: int) -> list[Failure]:
        """Compares a version's files with their hashes. Returns the failure, or an empty list."""
        folder = self._arguments.folder(name)
        self._checked[name, number] = _file_state(folder and folder / str(number))
        if folder is None or not has_manifest(folder, _present(folder)):
            return []
        try:
            check_version(folder / str(number))
        except Damaged as error:
            return [Failure(name, number, str(error), broken=True)]
        return []


def _file_state(folder: Path | None) -> FileState:
    """The paths, inodes, sizes and change times of a folder's files; None if there are none, or one cannot be read."""
    try:
        files = sorted(path for path in folder.rglob("*") if not path.is_dir()) if folder else []
        statuses = ((path, path.stat()) for path in files)
        return tuple((path, status.st_ino, status.st_size, status.st_ctime_ns) for path, status in statuses) or None
    except OSError:
        return None


def _present(folder: Path) -> list[int]:
    with suppress(OSError):
        return versions(folder)
    return []
