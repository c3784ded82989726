"""Sends texts of different lengths to a packed encoder whose process is killed, and compares every answer.

Out: counts of answers; `swapped`: wrong answers that are the answer of another text; `texts_a_run`: how many texts the
server joined in a run, on average.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.drills.checked_requests import Asker, Question, Verdicts, is_close, meanwhile, question
from benchmarks.drills.drill_bench import HEAL_S, acts, stubs, wait_until, wait_until_right
from benchmarks.drills.small_encoder import HIDDEN, IDS, LONGEST, MASK, POOLED, WORDS, write_encoder
from benchmarks.measure.run import Row
from serving.local_server import Server, running_server

MODEL = "encoder"
REQUESTS, KILLS, IN_FLIGHT = 100_000, 3, 16
TEXTS = 1_000  # different texts
TOLERANCE = 1e-4  # absolute; the answers are of about 1

Answers = Mapping[str, NDArray[np.float32]]


def mixed_texts() -> Row:
    """The row after REQUESTS right answers and KILLS kills of the model's process, evenly among them."""
    with tempfile.TemporaryDirectory(prefix="texts-") as folder:
        file = publish_packed(Path(folder))
        texts = Texts(file)
        with running_server(Path(folder, "models"), supervised=True, timeout_s=HEAL_S) as server:
            wait_until_right(server)
            asker = Asker(server.http_url, MODEL, texts.questions)
            with meanwhile(lambda until, verdicts: asker.closed_loop(IN_FLIGHT, until, verdicts)) as verdicts:
                for _ in range(KILLS):
                    _wait_for(verdicts, REQUESTS // (KILLS + 1))
                    _kill(server)
                _wait_for(verdicts, REQUESTS // (KILLS + 1))
            texts_a_run = _texts_a_run(server)
    return {**verdicts.row(), "swapped": texts.swapped, "kills": KILLS, "texts_a_run": texts_a_run}


def publish_packed(folder: Path) -> Path:
    """Writes the packed file, publishes it in the repository `models`, and returns it. Raises RuntimeError."""
    from export.publishing.dynamic_batching import prove_joining
    from export.publishing.publish import publish
    from export.publishing.sidecar import read_with_sidecars
    from export.rewrite_file import Request, rewrite_file

    file = folder / "packed.onnx"
    request = Request((f"{HIDDEN}[mask]", POOLED), packed=MASK, proof="float32")
    rewrite_file(write_encoder(folder), file, request)
    artifact, told = prove_joining(read_with_sidecars(file))
    if artifact.origin.joined_lengths is None:
        raise RuntimeError("; ".join(told))
    publish(folder / "models", MODEL, artifact)
    return file


class Texts:
    """Random texts as questions. Their answers come from `file` in this process, one text a call."""

    def __init__(self, file: Path) -> None:
        import onnxruntime

        session, rng = onnxruntime.InferenceSession(file), np.random.default_rng(0)
        self.answers: list[dict[str, NDArray[np.float32]]] = []
        self.questions: list[Question] = []
        self.swapped = 0
        for number, tokens in enumerate(rng.integers(1, LONGEST + 1, TEXTS)):
            ids = rng.integers(0, WORDS, (1, tokens))
            inputs = {IDS: ids, MASK: np.ones_like(ids)}
            self.answers.append(dict(zip((HIDDEN, POOLED), session.run([HIDDEN, POOLED], inputs), strict=True)))
            self.questions.append(question(inputs, [HIDDEN, POOLED], self._judge(number)))
        self._check_apart()

    def _judge(self, number: int) -> Any:
        def is_right(found: Answers) -> bool:
            right = self._is(found, number)
            self.swapped += not right and any(self._is(found, other) for other in range(TEXTS))
            return right

        return is_right

    def _is(self, found: Answers, number: int) -> bool:
        return all(is_close(found[name], expected, TOLERANCE) for name, expected in self.answers[number].items())

    def _check_apart(self) -> None:
        """Raises RuntimeError if two texts have the same answer: a swap would go unseen."""
        pooled = np.concatenate([each[POOLED] for each in self.answers])
        apart = np.abs(pooled[:, None] - pooled[None]).max(axis=2) + np.eye(len(pooled))
        if apart.min() < 10 * TOLERANCE:
            raise RuntimeError(f"expected answers that are {10 * TOLERANCE:g} apart, found {apart.min():.1e}")


def _wait_for(verdicts: Verdicts, count: int) -> None:
    """Waits until `count` more answers are right. Raises TimeoutError if none is right for HEAL_S."""
    enough = len(verdicts.right) + count
    while (right := len(verdicts.right)) < enough:
        wait_until(lambda: len(verdicts.right) > right)


def _kill(server: Server) -> None:
    """Kills the newest stub, and waits until the model is loaded again or the server is restarted.

    An older stub may be about to end after a load.
    """
    before = acts(server)
    max(stubs(server), key=lambda process: process.create_time()).kill()
    wait_until(lambda: acts(server) != before)
    wait_until_right(server)


def _texts_a_run(server: Server) -> float:
    """Texts in a run of the model, on average since it was last loaded."""
    with urllib.request.urlopen(f"http://{server.http_url}/v2/models/{MODEL}/stats", timeout=10) as answer:
        (counts,) = json.load(answer)["model_stats"]
    return float(counts["inference_count"] / counts["execution_count"])
