"""Sends requests one after the other to a model with the default limit of its queue, and to the model without a limit.

Out: a row of counts with the limit, and for both p50, p99 and worst latency in ms, and how many answers exceed LATE_MS.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.drills.checked_requests import Asker, Verdicts, after, image_question
from benchmarks.drills.drill_setup import MODEL, publish_shipped
from benchmarks.load.published_candidates import edited_config
from serving.local_server import running_server

UNBOUNDED = "unbounded"
REQUESTS, TURN = 8_000, 500
LATE_MS = 400.0  # a request whose wake-up is lost sleeps for 500 ms


def lone_requests() -> dict[str, Any]:
    """The row; both models take turns on a server."""
    from export.publishing.artifact import read_version
    from export.publishing.publish import publish

    with tempfile.TemporaryDirectory(prefix="lone-") as folder:
        repository = Path(folder)
        images, logits = publish_shipped(MODEL, repository)
        publish(repository, UNBOUNDED, read_version(repository / MODEL / "1"))
        with edited_config(repository / UNBOUNDED) as config:
            config.dynamic_batching.ClearField("default_queue_policy")
            del config.instance_group[1:]
        single = image_question(images[:1], logits[:1])
        verdicts = {MODEL: Verdicts(), UNBOUNDED: Verdicts()}
        with running_server(repository) as server:
            for _ in range(REQUESTS // TURN):
                for name in verdicts:
                    Asker(server.http_url, name, [single]).closed_loop(1, after(TURN), verdicts[name])
    rows = {
        name: {**of_model.row(), "late": sum(1e3 * seconds > LATE_MS for _, seconds in of_model.right)}
        for name, of_model in verdicts.items()
    }
    compared = ("p50_ms", "p99_ms", "worst_ms", "late")
    return {**rows[MODEL], **{f"{UNBOUNDED}_{name}": rows[UNBOUNDED][name] for name in compared}}
