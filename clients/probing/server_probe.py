"""Asks every served version a stored question and compares the answer.

In: a server's HTTP address and, if its files are on this machine, its repositories. Out: a `Probe`. clients/probing/stored_samples.py
finds the question. A version that refuses or delays the sample passes as `busy` if it answers other requests meanwhile.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clients.probing.deadline_http import Server
from clients.probing.stored_samples import judged, outputs, question, request
from clients.probing.verdicts import PASSING, Probe, ProbeFailed, State, VersionProbe
from common.repository import model_dir

TIMEOUT_S = 0.8  # leaves room for the start of Python within a second
ASK_SHARE = 0.75  # of the timeout, for the samples; the rest shows whether a silent version answers others
PROGRESS_S = 0.02  # between two looks at a version's count of answers
MOST_VERSIONS_AT_ONCE = 8

# Raised while an answer is read that is not of Triton's form.
FOREIGN = (LookupError, TypeError, ValueError, AttributeError, OverflowError, zlib.error)


def probe_server(
    url: str,
    models: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    repositories: Sequence[Path] = (),
) -> Probe:
    """Asks every served version of `models`, by default of all; `repositories`: folders with the models' samples."""
    started = time.monotonic()
    server = Server(url, headers or {}, started + timeout_s)
    try:
        successes = _successes(server)
        served = _chosen(successes, models)
        with ThreadPoolExecutor(MOST_VERSIONS_AT_ONCE) as pool:
            until = started + ASK_SHARE * timeout_s
            verdicts = list(pool.map(lambda each: _verdict(server, each, until, successes, repositories), served))
    except ProbeFailed as failure:
        return Probe(url, False, round(time.monotonic() - started, 4), (), str(failure))
    ok = all(verdict.state in PASSING for verdict in verdicts)
    return Probe(url, ok, round(time.monotonic() - started, 4), verdicts)


def _chosen(ready: Collection[tuple[str, str]], models: Sequence[str]) -> list[tuple[str, str]]:
    """The (model, version) pairs to ask. Raises ProbeFailed for a model that is not served."""
    names = {name for name, _ in ready}
    if missing := sorted(set(models) - names):
        raise ProbeFailed(f"model {missing[0]!r} is not served")
    if not ready:
        raise ProbeFailed("no model is served")
    return [(name, version) for name, version in ready if not models or name in models]


def _successes(server: Server) -> dict[tuple[str, str], int]:
    """(model, version) -> requests answered, for all ready versions: Triton tells these statistics without a key."""
    answer = server.json("v2/models/stats")
    try:
        stats = answer["model_stats"]
        return {(each["name"], each["version"]): int(each["inference_stats"]["success"]["count"]) for each in stats}
    except FOREIGN as error:
        raise ProbeFailed(f"expected Triton's statistics, found {str(answer)[:100]!r}") from error


def _verdict(
    server: Server,
    which: tuple[str, str],
    until: float,
    before: Mapping[tuple[str, str], int],
    repositories: Sequence[Path],
) -> VersionProbe:
    started = time.monotonic()
    state: State
    try:
        state, error, reason = _ask_sample(server, *which, until, repositories)
    except ProbeFailed as failure:
        error, reason = None, str(failure)
        state = "busy" if failure.passing and _progresses(server, which, before) else "failed"
    except FOREIGN as failure:
        state, error, reason = "failed", None, f"expected a classifier's answer, found {failure!r}"
    return VersionProbe(*which, state, round(1e3 * (time.monotonic() - started), 2), error, reason)


def _progresses(server: Server, which: tuple[str, str], before: Mapping[tuple[str, str], int]) -> bool:
    try:
        while _successes(server).get(which, 0) <= before.get(which, 0):
            time.sleep(PROGRESS_S)
    except ProbeFailed:
        return False
    return True


def _ask_sample(
    server: Server, model: str, version: str, until: float, repositories: Sequence[Path]
) -> tuple[State, float | None, str]:
    config = server.json(f"v2/models/{model}/versions/{version}/config")
    asked = question(config, version, model_dir(repositories, model))
    header, content = request(config, asked.inputs)
    answer, length = server.ask(f"v2/models/{model}/versions/{version}/infer", header + content, len(header), until)
    return judged(asked.expected, outputs(answer, length))
