"""Compares calls by every transport with calls of the same file in this process.

The client's part is a request's duration minus the server's part, from arrival until the network has the answer.
"""

from __future__ import annotations

import json
import resource
import time
import urllib.request
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure.progress import count_bar
from benchmarks.measure.workload import IN_PROCESS

if TYPE_CHECKING:
    from benchmarks.measure.timing import Durations
    from clients.classifier import Classifier
    from export.equivalence import Images

STREAM_STEPS = 10
CLIENT_CALLS = 300


def client_part_ns(classifiers: Mapping[str, Classifier], statistics_url: str, image: Images) -> dict[str, list[int]]:
    """The client's part of each single request in ns, by transport; the transports take turns."""

    def served() -> tuple[int, int]:
        with urllib.request.urlopen(statistics_url) as answer:
            success = json.load(answer)["model_stats"][0]["inference_stats"]["success"]
        return success["count"], success["ns"]

    samples: dict[str, list[int]] = {name: [] for name in classifiers}
    count, total_ns = served()
    for _ in range(CLIENT_CALLS):
        for name, classifier in classifiers.items():
            start_ns = time.perf_counter_ns()
            classifier.classify(image)
            took_ns = time.perf_counter_ns() - start_ns
            before, before_ns = count, total_ns
            while count == before:  # the server counts a request after its answer has left
                count, total_ns = served()
            samples[name].append(took_ns - (total_ns - before_ns))
    return samples


def stream(classifier: Classifier, images: Images, count: int) -> Iterator[dict[str, float]]:
    """Streams `count` images and yields STREAM_STEPS measurements of this process's memory."""
    answers = classifier.stream(images[i % len(images)] for i in range(count))
    with count_bar("Streaming", count, "images") as advance:
        for step in range(1, STREAM_STEPS + 1 if count else 1):
            advance(sum(1 for _ in islice(answers, count // STREAM_STEPS)))
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            yield {"images": step * (count // STREAM_STEPS), "resident_mb": pages * resource.getpagesize() / 1e6}


def rows(measured: Mapping[str, Durations], count: int) -> list[dict[str, Any]]:
    alone_ms = measured[IN_PROCESS].percentile_ms(50)
    return [
        {
            "images_a_call": count,
            "transport": name,
            "images_per_s": count / (p50_ms := durations.percentile_ms(50)) * 1000,
            "added_ms": p50_ms - alone_ms,
            **durations.row(),
        }
        for name, durations in measured.items()
    ]
