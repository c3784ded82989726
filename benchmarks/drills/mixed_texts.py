"""Sends texts of different lengths to a packed encoder whose process is killed, and compares every answer.

Out: a row of counts. `swapped`: wrong answers that are right for another text. `texts_a_run`: how many texts the server
joined in a run of the model, on average.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.drills.checked_requests import Asker, Question, is_close, make_question, meanwhile
from benchmarks.drills.drill_setup import (
    HEAL_S,
    stubs,
    supervisor_actions,
    wait_for_right_answers,
    wait_until,
    wait_until_right,
)
from benchmarks.load.published_candidates import joining
from benchmarks.measure.foreign_networks import IDS, MASK, exported
from benchmarks.measure.result_file import Row
from serving.local_server import Server, running_server

MODEL = "encoder"
WORDS, WIDTH, HEADS, BLOCKS, LONGEST = 500, 32, 2, 2, 128  # of the encoder
HIDDEN, POOLED = "hidden", "pooled"
REQUESTS, KILLS, IN_FLIGHT = 100_000, 3, 16
TEXTS = 1_000  # different texts
TOLERANCE = 1e-4  # absolute; the answers are of about 1

Answers = Mapping[str, NDArray[np.float32]]


def mixed_texts() -> Row:
    """The row after REQUESTS right answers, during which the model's process is killed KILLS times."""
    with tempfile.TemporaryDirectory(prefix="texts-") as folder:
        file = publish_packed(Path(folder))
        texts = Texts(file)
        with running_server(Path(folder, "models"), supervised=True, timeout_s=HEAL_S) as server:
            wait_until_right(server)
            asker = Asker(server.http_url, MODEL, texts.questions)
            with meanwhile(lambda until, verdicts: asker.closed_loop(IN_FLIGHT, until, verdicts)) as verdicts:
                for _ in range(KILLS):
                    wait_for_right_answers(verdicts, REQUESTS // (KILLS + 1))
                    _kill(server)
                wait_for_right_answers(verdicts, REQUESTS // (KILLS + 1))
            texts_a_run = _texts_a_run(server)
    return {**verdicts.row(), "swapped": texts.swapped, "kills": KILLS, "texts_a_run": texts_a_run}


def publish_packed(folder: Path) -> Path:
    """Writes the encoder's packed file to `folder`, publishes it in the subfolder `models`, and returns its path.

    Raises Failed if requests of different lengths would not be joined.
    """
    from export.publishing.publish import publish
    from export.publishing.sidecar import read_with_sidecars
    from export.rewrite_file import Request, rewrite_file

    file = folder / "packed.onnx"
    request = Request((f"{HIDDEN}[mask]", POOLED), packed=MASK, proof="float32")
    rewrite_file(write_encoder(folder), file, request)
    publish(folder / "models", MODEL, joining(read_with_sidecars(file)))
    return file


class Texts:
    """Random texts as questions. The expected answers come from `file` in this process, with a text a call."""

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
            self.questions.append(make_question(inputs, [HIDDEN, POOLED], partial(self._is_right, number)))
        self._check_distances()

    def _is_right(self, number: int, answer: Answers) -> bool:
        right = self._is_answer_of(number, answer)
        self.swapped += not right and any(self._is_answer_of(other, answer) for other in range(TEXTS))
        return right

    def _is_answer_of(self, number: int, answer: Answers) -> bool:
        return all(is_close(answer[name], expected, TOLERANCE) for name, expected in self.answers[number].items())

    def _check_distances(self) -> None:
        """Raises RuntimeError if the answers of two texts are so close that a swap would go unseen."""
        pooled = np.concatenate([answers[POOLED] for answers in self.answers])  # (TEXTS, WIDTH)
        distances = np.abs(pooled[:, None] - pooled[None]).max(axis=2) + np.eye(len(pooled))
        if distances.min() < 10 * TOLERANCE:
            raise RuntimeError(f"expected answers that are {10 * TOLERANCE:g} apart, found {distances.min():.1e}")


def _kill(server: Server) -> None:
    """Kills the newest stub, and waits until the model is loaded again or the server is restarted.

    An older stub may be about to end after a load, so its death would change nothing.
    """
    before = supervisor_actions(server)
    max(stubs(server), key=lambda process: process.create_time()).kill()
    wait_until(lambda: supervisor_actions(server) != before)
    wait_until_right(server)


def _texts_a_run(server: Server) -> float:
    """Texts in a run of the model, on average since it was last loaded."""
    with urllib.request.urlopen(f"http://{server.http_url}/v2/models/{MODEL}/stats", timeout=10) as answer:
        (counts,) = json.load(answer)["model_stats"]
    return float(counts["inference_count"] / counts["execution_count"])


def write_encoder(folder: Path) -> Path:
    """Writes a small transformer with random weights to `folder` and returns its ONNX file.

    Inputs: IDS and MASK, int64 (texts, tokens). Outputs: HIDDEN float32 (texts, tokens, WIDTH), and POOLED float32
    (texts, WIDTH), the mean of HIDDEN over the tokens that the mask shows.
    """
    import torch

    torch.manual_seed(0)
    ids, free = torch.ones(2, 16, dtype=torch.int64), {0: "texts", 1: "tokens"}
    path, arguments = folder / "plain.onnx", (ids, torch.ones_like(ids))
    return exported(_network(), arguments, [IDS, MASK], free, path, outputs=[HIDDEN, POOLED])


def _network() -> Any:
    import torch
    from torch import Tensor, nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

        def heads(self, x: Tensor) -> Tensor:
            split: Tensor = x.unflatten(2, (HEADS, -1))  # (B, N, H, D)
            return split.transpose(1, 2)  # (B, H, N, D)

        def forward(self, x: Tensor, bias: Tensor) -> Tensor:
            query, key, value = (self.heads(layer(x)) for layer in (self.query, self.key, self.value))
            weights = torch.softmax(query @ key.transpose(2, 3) * (WIDTH / HEADS) ** -0.5 + bias, -1)
            x = self.norms[0](x + self.out((weights @ value).transpose(1, 2).flatten(2)))
            out: Tensor = self.norms[1](x + self.down(nn.functional.gelu(self.up(x))))
            return out

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
            x = self.words(input_ids) + self.positions(torch.arange(input_ids.shape[1]))  # (B, N, C)
            shown = attention_mask.to(x.dtype)
            bias = (1 - shown[:, None, None, :]) * torch.finfo(x.dtype).min
            for block in self.blocks:
                x = block(x, bias)
            return x, (x * shown[:, :, None]).sum(1) / shown.sum(1, keepdim=True).clamp(min=1)

    return Encoder()
