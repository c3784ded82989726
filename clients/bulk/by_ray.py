"""Distributes parts to the Ray cluster of $RAY_ADDRESS, else to a new cluster on this machine.

Every node must see the inputs, the model and the output under the same paths, and have this package.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

from clients.bulk.by_processes import ATTEMPTS
from clients.bulk.job_manifest import Job, Part
from clients.bulk.scoring import Outcome, classify_part


def run(job: Job, parts: Iterator[Part]) -> Iterator[Outcome]:
    """Yields outcomes in the order in which parts end.

    Ray repeats a part whose task dies or raises OSError, ATTEMPTS times in all.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init(log_to_driver=False, include_dashboard=False)
    try:
        # Tasks, not actors: two actors of 0.9 cores on two cores leave no core for readers, and the job hangs.
        task = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1, retry_exceptions=[OSError])(classify_part)
        most_submitted = 2 * int(ray.cluster_resources().get("CPU", 1))
        submitted: dict[Any, int] = {}  # reference of the task -> number of the part
        while True:
            for part in islice(parts, most_submitted - len(submitted)):
                submitted[task.remote(job, part)] = part.number
            if not submitted:
                return
            ended, _ = ray.wait(list(submitted), num_returns=1)
            for reference in ended:
                yield _outcome(reference, submitted.pop(reference))
    finally:
        ray.shutdown()


def _outcome(reference: Any, number: int) -> Outcome:
    import ray

    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayError as error:
        return Outcome(number, failure=str(error).strip().splitlines()[-1])
    return outcome
