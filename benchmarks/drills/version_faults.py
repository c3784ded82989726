"""Versions that do not load, or answer wrongly. The supervisor must serve another version.

In: a `DrillBench`. Out: a row of counts of requests, and which versions are served. Clients do not retry.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.drills.drill_setup import MODEL, DrillBench, supervisor_actions, wait_until
from benchmarks.measure.result_file import Row
from clients.probing.server_probe import probe_server
from serving.model_control_client import Control

BROKEN_S = 2.0  # of requests beside a broken version
SETTLE_S, LATER_S = 3.0, 5.0


def newest_broken(bench: DrillBench) -> Row:
    """The newest version's file is empty at the start."""
    row, _ = _newest_spoiled(bench, lambda version: (version / "model.onnx").write_bytes(b""), BROKEN_S)
    return row


def answers_nan(bench: DrillBench) -> Row:
    """The newest version loads and has correct hashes, but answers NaN. An older version must replace it."""

    def spoil(version: Path) -> None:
        change_weights(version, lambda weights: np.full_like(weights, np.nan))

    row, actions = _newest_spoiled(bench, spoil, 2 * SETTLE_S)
    return {**row, **actions}


def _newest_spoiled(bench: DrillBench, spoil: Callable[[Path], object], traffic_s: float) -> tuple[Row, Row]:
    """The row of a server whose newest version is spoiled before the start, and what its supervisor did."""
    with bench.repository() as repository:
        spoil(repository / MODEL / "2")
        started = time.perf_counter()
        with bench.server(repository) as server:
            recovery_s = time.perf_counter() - started
            with bench.traffic(server) as verdicts:
                time.sleep(traffic_s)
            served = sorted(version.version for version in probe_server(server.http_url, timeout_s=5).versions)
            return {**verdicts.row(), "recovery_s": recovery_s, "served": served}, supervisor_actions(server)


def change_weights(version: Path, change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    """Changes the largest initialiser of a version's file, and the file's hash in the manifest."""
    import onnx
    from onnx import numpy_helper

    path = version / "model.onnx"
    model = onnx.load(path)
    weights = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    weights.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(weights)), weights.name))
    onnx.save(model, path)
    manifest = json.loads((version / "manifest.json").read_text())
    manifest["files"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (version / "manifest.json").write_text(json.dumps(manifest))


def lying_version(bench: DrillBench) -> Row:
    """Another tool adds a version, whose logits are the same for all pictures, and loads it.

    `wrong_later`: wrong answers later than LATER_S after the load began.
    """
    with bench.repository() as repository, bench.server(repository) as server:
        change_weights(Path(shutil.copytree(repository / MODEL / "1", repository / MODEL / "3")), np.zeros_like)
        with bench.traffic(server) as verdicts:
            started = time.perf_counter()
            Control.at(server.http_url, server.grpc_url).load(MODEL)
            time.sleep(max(0.0, started + LATER_S - time.perf_counter()))
            wrong_before = verdicts.wrong
            wait_until(lambda: Control.at(server.http_url).served().get(MODEL) == [1, 2])
            time.sleep(SETTLE_S)
        row = {**verdicts.row(), "wrong_later": verdicts.wrong - wrong_before}
        return {**row, "recovery_s": verdicts.recovery_s(started), **supervisor_actions(server)}
