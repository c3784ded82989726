"""Loads a supervised server's models: at its start, older versions if necessary, and again."""

import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from serving.acts import Acts
from serving.arguments import ServerOptions
from serving.control import Control, ControlFailed
from serving.waits import ServerLost, Waits
from serving.whole import Plan, plan

START_S = 180.0
LOAD_S = 120.0
RELOAD_S = 20.0  # while other models serve
UNLOAD_S = 3.0


class Loading:
    """Remembers over all runs what the server refused."""

    def __init__(self, options: ServerOptions, acts: Acts, waits: Waits) -> None:
        self._options, self._acts, self._waits = options, acts, waits
        self._control = Control(options.http_url, options.headers, options.grpc_url, options.grpc_headers)
        self._refused: dict[str, set[int]] = {}  # model -> versions

    def plans(self) -> dict[str, Plan]:
        """Raises ServerLost without the repository, such as a network folder that is away."""
        try:
            return {name: self.plan(name) for name in self._options.model_dirs()}
        except OSError as error:
            text = f"{error.filename}: expected a model repository, found {error.strerror}"
            raise ServerLost("blocked", text) from error

    def plan(self, name: str) -> Plan:
        """Also of a model that an operator has loaded or removed since the start."""
        folders = [repository / name for repository in self._options.repositories if (repository / name).is_dir()]
        return plan(folders[0], self._refused.get(name, ())) if folders else Plan(name, None)

    def load_all(self, process: subprocess.Popen[bytes], plans: Mapping[str, Plan]) -> None:
        """Loads what the server could not load at its start; raises ServerLost."""
        index = self._wait_for_index(process)
        for name, first in plans.items():
            self._acts.planned(name, first.versions or (), first.problems)
            ready = {number for number, state in index.get(name, {}).items() if state == "READY"}
            if not first.versions or ready >= {*first.versions}:
                continue
            if first.config is None:  # Triton says "not ready" for ever after a failed load at its start
                self._refused.setdefault(name, set()).add(first.versions[-1])
                raise ServerLost("refused", f"model {name}, version {first.versions[-1]} does not load")
            self._load_newest(name, first)

    def _load_newest(self, name: str, current: Plan) -> None:
        while current.versions:
            try:
                self._waits.call(partial(self._control.load, name, current.config, LOAD_S))
                return
            except ControlFailed as error:
                self._refused.setdefault(name, set()).add(current.versions[-1])
                self._acts.say(f"model {name}: {error}")
                current = self.plan(name)
                self._acts.planned(name, current.versions or (), current.problems)

    def _wait_for_index(self, process: subprocess.Popen[bytes]) -> dict[str, dict[int, str]]:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            self._waits.check(process)
            with suppress(ControlFailed):
                return self._control.index()
            self._waits.tick()
        raise ServerLost("hung", f"no answer within {START_S:g} s of its start")

    def load_again(self, name: str, current: Plan) -> None:
        """Raises ControlFailed."""
        self._waits.call(lambda: self._control.unload(name, UNLOAD_S))
        deadline = time.monotonic() + UNLOAD_S
        while "READY" in self._control.index().get(name, {}).values() and time.monotonic() < deadline:
            self._waits.tick()
        self._waits.call(lambda: self._control.load(name, current.config, RELOAD_S))

    def is_ready(self, name: str, version: int) -> bool:
        with suppress(ControlFailed):
            return self._control.index().get(name, {}).get(version) == "READY"
        return False
