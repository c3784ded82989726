"""Asks every served version its stored sample and compares the answer.

In: a server's HTTP address and, if its files are on this machine, its repositories. Out: a `Probe`. stored_samples.py
finds the sample. A version that refuses or delays the sample passes as `busy` if it answers other requests meanwhile.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from clients.probing.deadline_http import DeadlineServer
from clients.probing.stored_samples import encode_request, find_question, judge, parse_outputs
from clients.probing.verdicts import PASSING, Probe, ProbeFailed, State, VersionProbe
from common.repository import model_dir

TIMEOUT_S = 0.8  # so that the command, with Python's start, ends within a second
SAMPLE_SHARE = 0.75  # of the timeout, for the samples; in the rest a silent version may answer other requests
POLL_S = 0.02  # between two readings of a version's count of answers
MOST_VERSIONS_AT_ONCE = 8

# What reading an answer raises that is not of Triton's form.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, zlib.error)


def probe_server(
    url: str,
    models: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    repositories: Sequence[Path] = (),
) -> Probe:
    """Asks every served version of `models`, by default of all models.

    url: HOST:PORT. timeout_s: seconds for the complete probe. repositories: folders with the models' samples.
    """
    started_s = time.monotonic()
    server = DeadlineServer(url, headers or {}, started_s + timeout_s)
    try:
        answer_counts = _answer_counts(server)
        versions = _versions_to_ask(answer_counts, models)
        with ThreadPoolExecutor(MOST_VERSIONS_AT_ONCE) as pool:
            until_s = started_s + SAMPLE_SHARE * timeout_s
            ask = partial(_probe_version, server, until_s, answer_counts, repositories)
            verdicts = list(pool.map(ask, versions))
    except ProbeFailed as failure:
        return Probe(url, False, round(time.monotonic() - started_s, 4), (), str(failure))
    ok = all(verdict.state in PASSING for verdict in verdicts)
    return Probe(url, ok, round(time.monotonic() - started_s, 4), verdicts)


def _versions_to_ask(ready: Collection[tuple[str, str]], models: Sequence[str]) -> list[tuple[str, str]]:
    """The (model, version) pairs of `models`, by default all. Raises ProbeFailed for a model that is not served."""
    names = {name for name, _ in ready}
    if missing := sorted(set(models) - names):
        raise ProbeFailed(f"model {missing[0]!r} is not served")
    if not ready:
        raise ProbeFailed("no model is served")
    return [(name, version) for name, version in ready if not models or name in models]


def _answer_counts(server: DeadlineServer) -> dict[tuple[str, str], int]:
    """(model, version) -> answered requests, for all ready versions. Triton gives these statistics without a key."""
    answer = server.json("v2/models/stats")
    try:
        return {
            (version["name"], version["version"]): int(version["inference_stats"]["success"]["count"])
            for version in answer["model_stats"]
        }
    except MALFORMED as error:
        raise ProbeFailed(f"expected Triton's statistics, found {str(answer)[:100]!r}") from error


def _probe_version(
    server: DeadlineServer,
    until_s: float,
    counts_before: Mapping[tuple[str, str], int],
    repositories: Sequence[Path],
    version: tuple[str, str],
) -> VersionProbe:
    """The verdict on a (model, version) pair, which has until `until_s` to answer its sample."""
    started_s = time.monotonic()
    state: State
    try:
        state, error, reason = _ask_sample(server, *version, until_s, repositories)
    except ProbeFailed as failure:
        error, reason = None, str(failure)
        state = "busy" if failure.passing and _answers_others(server, version, counts_before) else "failed"
    except MALFORMED as failure:
        state, error, reason = "failed", None, f"expected a classifier's answer, found {failure!r}"
    return VersionProbe(*version, state, round(1e3 * (time.monotonic() - started_s), 2), error, reason)


def _answers_others(
    server: DeadlineServer, version: tuple[str, str], counts_before: Mapping[tuple[str, str], int]
) -> bool:
    """Whether the version's count of answers rises before the server's deadline."""
    try:
        while _answer_counts(server).get(version, 0) <= counts_before.get(version, 0):
            time.sleep(POLL_S)
    except ProbeFailed:
        return False
    return True


def _ask_sample(
    server: DeadlineServer, model: str, version: str, until_s: float, repositories: Sequence[Path]
) -> tuple[State, float | None, str]:
    """State, largest absolute error and reason. Raises ProbeFailed without an answer."""
    config = server.json(f"v2/models/{model}/versions/{version}/config")
    question = find_question(config, version, model_dir(repositories, model))
    header, content = encode_request(config, question.inputs)
    path = f"v2/models/{model}/versions/{version}/infer"
    answer, header_bytes = server.ask(path, header + content, len(header), until_s)
    return judge(question.expected, parse_outputs(answer, header_bytes))
