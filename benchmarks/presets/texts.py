"""Sends texts of different lengths to an encoder on a server, one text a request.

The encoder is padded or packed, and the server joins requests of different lengths in a call or does not. In: the
encoder's files, and lengths of texts. Out: rates and latencies of each way to serve the encoder. The ways take turns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.load import by_perf_analyzer
from benchmarks.load.published_candidates import WrongAnswer, edited_config, joining, server_arguments
from benchmarks.measure.foreign_networks import IDS, MASK, NETWORKS, WORDS
from benchmarks.measure.padding_strategies import (
    CUT,
    PACKED,
    PADDED,
    TOLERANCE,
    chunk_lengths,
    packed_files,
    short_lengths,
)
from benchmarks.measure.progress import note, steps
from benchmarks.measure.result_file import Record, Row
from benchmarks.reporting.recorded_decorator import recorded
from common.finite_range import FiniteRange

NETWORK = "bert-6x384"
TEXTS = 64  # different texts of a load
MAX_WAITING = 64  # requests in a model's queue on the server
CLIENTS = 8  # connections that ask at once while answers are compared
BASE = f"{PADDED}, joined"
# Way to serve -> file of the encoder, and whether the server joins requests of different lengths in a call.
WAYS: Mapping[str, tuple[str, bool]] = {
    BASE: (PADDED, True),
    f"{PADDED}, one text a call": (PADDED, False),
    f"{PACKED}, one text a call": (PACKED, False),
    f"{PACKED}, joined": (PACKED, True),
    f"{CUT}, joined": (CUT, True),
}

Text = Mapping[str, NDArray[np.int64]]  # input -> ids or mask, (1, tokens)


@click.command()
@click.option(
    "--in-flight", type=click.IntRange(1, MAX_WAITING), default=48, show_default=True, help="In a closed loop."
)
@click.option("--seconds", type=FiniteRange(1), default=10, show_default=True, help="Per measurement.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@recorded("texts")
def texts(record: Record, in_flight: int, seconds: float, rounds: int) -> None:
    """Serve BERT of 6 layers of 384 with one text a request, as exported and packed, joined and apart.

    Lengths: chunks of documents, by the quantiles that huggingface/funes#167 publishes; short texts, drawn.
    NVIDIA's perf_analyzer sends them.
    """
    with tempfile.TemporaryDirectory() as folder:
        by_perf_analyzer.program()  # raises Failed for a missing program now, not after the export
        files = packed_files(NETWORKS[NETWORK].file(Path(folder)), Path(folder))
        for rows in measure(files, in_flight, seconds, rounds):
            record.update([{"network": NETWORK, "title": NETWORKS[NETWORK].title, **row} for row in rows])


def lengths() -> dict[str, NDArray[np.int64]]:
    """Load -> lengths of TEXTS texts in tokens.

    The chunks' lengths are spread evenly over the published quantiles. Those of short texts are random.
    """
    rng, quantiles = np.random.default_rng(0), (np.arange(TEXTS) + 0.5) / TEXTS
    return {
        "chunks of documents": rng.permutation(chunk_lengths(quantiles)),
        "short texts": short_lengths(rng, TEXTS),
    }


def measure(files: Mapping[str, Path], in_flight: int, seconds: float, rounds: int) -> Iterator[list[Row]]:
    """The rows of all rounds so far, after each round. `files`: name -> the encoder's ONNX file.

    Raises WrongAnswer if a way's answers differ, Failed if a way cannot be measured.
    """
    from serving.local_server import running_server

    loads = {name: draw(tokens) for name, tokens in lengths().items()}
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "models")
        for number, (file, joined) in enumerate(WAYS.values()):
            publish(repository, f"way-{number}", files[file], joined)
        with running_server(repository, server_arguments()) as server:
            models = {way: f"way-{number}" for number, way in enumerate(WAYS)}
            for texts in loads.values():
                check(server.http_url, models, texts, files[PADDED])
            cells = [(load, way) for load in loads for way in WAYS]
            note(f"{len(cells)} loads, {rounds} rounds of {seconds:g} s each")
            measured: dict[tuple[str, str], list[dict[str, float]]] = {cell: [] for cell in cells}
            for number in range(rounds):
                for load, way in steps(cells if number % 2 == 0 else cells[::-1], f"round {number + 1} of {rounds}"):
                    figures = by_perf_analyzer.measure_texts(
                        server, models[way], loads[load], in_flight, seconds, Path(folder)
                    )
                    measured[load, way].append(figures)
                yield [_row(load, way, measured, loads[load], in_flight) for load, way in cells]


def draw(lengths: Sequence[int] | NDArray[np.int64]) -> list[Text]:
    """A text of random tokens for each length, without padding."""
    rng = np.random.default_rng(1)
    token_ids = [rng.integers(3, WORDS, (1, length)) for length in lengths]
    return [{IDS: ids, MASK: np.ones_like(ids)} for ids in token_ids]


def publish(repository: Path, name: str, file: Path, joined: bool) -> None:
    """Adds `file` to the repository. `joined`: as in `joining`. Raises Failed as `joining`."""
    from export.publishing.build_config_pbtxt import Serving
    from export.publishing.foreign_artifact import foreign_artifact
    from export.publishing.publish import publish as publish_artifact

    artifact = foreign_artifact(file)
    if joined:
        artifact = joining(artifact.with_origin(packed=MASK))
    publish_artifact(repository, name, artifact, Serving(instances=1, threads=0))
    with edited_config(repository / name) as config:
        config.dynamic_batching.default_queue_policy.max_queue_size = MAX_WAITING


def check(url: str, models: Mapping[str, str], texts: Sequence[Text], file: Path) -> None:
    """Raises WrongAnswer if a served model's answers differ from those of `file` in this process, one text a call.

    `url`: host:port of the server's HTTP. `models`: way to serve -> name of its model.
    """
    import onnxruntime
    import tritonclient.http as http

    session = onnxruntime.InferenceSession(file)
    expected = np.concatenate([session.run(None, dict(text))[0] for text in texts])

    def ask(model: str, text: Text) -> Any:
        inputs = [
            http.InferInput(name, list(array.shape), "INT64").set_data_from_numpy(array) for name, array in text.items()
        ]
        with http.InferenceServerClient(url, network_timeout=600) as client:
            return client.infer(model, inputs).as_numpy(session.get_outputs()[0].name)

    with ThreadPoolExecutor(CLIENTS) as clients:
        for way, model in models.items():
            answers = np.concatenate(list(clients.map(partial(ask, model), texts)))
            error = float(np.abs(answers - expected).max() / np.abs(expected).max())
            if not error <= TOLERANCE:  # NaN too
                raise WrongAnswer(f"{way}: expected answers within {TOLERANCE:g} of their size, found {error:.1e}")


def _row(
    load: str,
    way: str,
    measured: Mapping[tuple[str, str], list[dict[str, float]]],
    texts: Sequence[Text],
    in_flight: int,
) -> Row:
    """Medians of the rounds, and each round's rate and p99 relative to those of BASE in the same round."""
    rounds, base_rounds = measured[load, way], measured[load, BASE]
    tokens = [text[MASK].shape[1] for text in texts]

    def relative(name: str) -> list[float]:
        return [figures[name] / base[name] for figures, base in zip(rounds, base_rounds, strict=True)]

    return {
        **{"load": load, "candidate": way, "in_flight": in_flight, "texts": len(texts)},
        **{"mean_tokens": sum(tokens) / len(tokens), "longest_tokens": max(tokens)},
        **{name: float(median(figures[name] for figures in rounds)) for name in rounds[0]},
        **{f"rate_of_{PADDED}_joined": relative("texts_per_s"), f"p99_of_{PADDED}_joined": relative("p99_ms")},
    }
