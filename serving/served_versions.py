"""Decides which versions of a model are served, by their files and by what happened in a server.

In: the repositories; refused loads and wrong answers. Out: a `Plan` per model. `Versions` remembers over all runs of
the server.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from common.repository import Damaged, has_manifest, versions
from serving.arguments import ServerOptions
from serving.events import Events
from serving.healing import ServerLost
from serving.prober import Failure
from serving.version_plan import Plan, check_version, plan, state

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0  # before refused loads are tried again
LOOK_S = 2.0  # between looks at the files of models of which nothing is served


@dataclass
class Refused:
    """A model's versions that are not served, version -> reason.

    `loads`: the server refused to load them. They may load later, such as after a full disk was emptied; `due_s`: when
    to try again. `answers`: they answered wrong or too slowly, and are not tried again. `failed`: versions whose
    load has failed once, perhaps as somebody killed its process, and which have not answered since.
    """

    loads: dict[int, str] = field(default_factory=dict)
    answers: dict[int, str] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    pause_s: float = FIRST_PAUSE_S
    due_s: float | None = None


class Versions:
    """Which versions of each model are refused, and since when its files are known. Asked by the supervisor alone."""

    def __init__(self, options: ServerOptions, events: Events) -> None:
        self._options, self._events = options, events
        self._refused = defaultdict[str, Refused](Refused)
        self._seen: dict[tuple[str, int], tuple[object, ...] | None] = {}  # version -> state of its checked files
        self._empty: dict[str, tuple[object, ...] | None] = {}  # model without an intact version -> state of its files
        self._looked_s = 0.0

    def plans(self) -> dict[str, Plan]:
        """The plans for a start. Raises ServerLost without a repository, such as a network folder that is away."""
        try:
            return {name: self._plan_for_start(name) for name in self._options.model_dirs()}
        except OSError as error:
            text = f"{error.filename}: expected a model repository, found {error.strerror}"
            raise ServerLost("blocked", text) from error

    def _plan_for_start(self, name: str) -> Plan:
        """The model's plan. If only refused versions are left, they are loaded later: a refused load ends a start.

        They wait for the rest of their pause: a load that loses a process ends the server.
        """
        current, refused = self.plan(name), self._refused[name]
        if current.versions == () and refused.loads:
            refused.due_s = refused.due_s or time.monotonic()
        return current

    def plan(self, name: str) -> Plan:
        """The plan of a model now; an operator may have loaded or removed the model since the start."""
        folder, refused = self._options.folder(name), self._refused[name]
        if folder is None:
            return Plan(name, None)
        before, whole = {number: self._state(name, number) for number in _present(folder)}, _state(folder)
        current = plan(folder, refused.loads | refused.answers)
        self._seen |= {(name, number): before.get(number) for number in current.versions or ()}
        self._empty.pop(name, None)
        if current.versions == ():
            self._empty[name] = whole
        return current

    def load_failed(self, name: str, number: int, found: str = "the server refuses it") -> Plan:
        """Call it after a load of version `number` failed. Returns the plan, the second time without that version.

        With nothing left to serve, refused loads are due again after a pause, each time twice as long.
        """
        refused = self._refused[name]
        if number not in refused.failed:
            refused.failed.add(number)
            return self.plan(name)
        refused.loads[number] = f"expected a version that loads, {found}"
        current = self.replan(name)
        if not current.versions:
            refused.due_s = time.monotonic() + refused.pause_s
            refused.pause_s = min(2 * refused.pause_s, LONGEST_PAUSE_S)
        return current

    def answered(self, served: Iterable[tuple[str, int]]) -> None:
        """Call it with the versions that answer right."""
        for name, number in served:
            self._refused[name].failed.discard(number)

    def replan(self, name: str, wrong: Mapping[int, str] | None = None) -> Plan:
        """Gives up the `wrong` versions, plans the model anew and logs the plan."""
        self._refused[name].answers |= wrong or {}
        current = self.plan(name)
        self._events.planned(name, current.versions or (), current.problems)
        return current

    def has_others(self, name: str, slow: Mapping[int, str]) -> bool:
        """Whether a version is left to serve without the `slow` versions."""
        folder, refused = self._options.folder(name), self._refused[name]
        return bool(slow and folder and plan(folder, {**refused.loads, **refused.answers, **slow}).versions)

    def loaded(self, name: str) -> None:
        """Call it after a load that worked: the next refused load waits for the shortest pause again."""
        self._refused[name].pause_s, self._refused[name].due_s = FIRST_PAUSE_S, None

    def due(self) -> list[str]:
        """The models whose refused loads are to be tried again now, or whose damaged files have changed.

        Each is returned once.
        """
        due = [name for name, each in self._refused.items() if each.due_s and each.due_s < time.monotonic()]
        for name in due:
            self._refused[name].due_s = None
            self._refused[name].loads.clear()
        return [*due, *self._changed()]

    def _changed(self) -> list[str]:
        """The models of which nothing is served and whose files have changed since."""
        if time.monotonic() - self._looked_s < LOOK_S:
            return []
        self._looked_s = time.monotonic()
        folders = {name: self._options.folder(name) for name in self._empty}
        changed = [name for name, folder in folders.items() if folder and _state(folder) != self._empty[name]]
        for name in changed:
            del self._empty[name]
        return changed

    def forget(self) -> None:
        """An operator asked for a restart: refused versions are tried again."""
        self._refused.clear()

    def unchecked(self, served: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """The `served` versions whose files were not checked since they last changed."""
        return [which for which in served if self._state(*which) not in (None, self._seen.get(which))]

    def check_files(self, which: tuple[str, int]) -> list[Failure]:
        """Compares a version's files with their hashes. Returns the failure, if any."""
        name, number = which
        folder, self._seen[which] = self._options.folder(name), self._state(*which)
        if folder is None or not has_manifest(folder, _present(folder)):
            return []
        try:
            check_version(folder / str(number))
        except Damaged as error:
            return [Failure(name, number, str(error), broken=True)]
        return []

    def _state(self, name: str, number: int) -> tuple[object, ...] | None:
        """A value that changes with a version's files; None if they are gone."""
        folder = self._options.folder(name)
        return _state(folder / str(number)) if folder else None


def _state(folder: Path) -> tuple[object, ...] | None:
    try:
        return state(folder) or None
    except OSError:
        return None


def _present(folder: Path) -> list[int]:
    with suppress(OSError):
        return versions(folder)
    return []
