"""A packed file is published with the way in which its requests of different lengths run together."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import tritonclient.http as http
from foreign_networks import VOCABULARY, export
from masked_networks import Masked, hiding
from numpy.typing import NDArray
from operating import ok

from common.sample import Sample
from export.publishing.batching_proof import NotJoined, prove_joined, prove_joining
from export.publishing.foreign_artifact import foreign_artifact
from export.publishing.publish import read_config
from export.publishing.sidecar import read_with_sidecars
from export.rewrite_file import Request, rewrite_file
from serving.backends.length_padding import LengthPadding, is_proved
from serving.local_server import running_server

pytestmark = pytest.mark.slow

MASK, AS_ENCODER = "attention_mask", ("--name", "encoder")
Array = NDArray[Any]
Packed = Callable[..., Path]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    @cache
    def write(form: str, pool: str, *reads: str) -> Path:
        folder = tmp_path_factory.mktemp("packed")
        onnx.save(export(Masked(form, pool)), folder / "in.onnx")
        rewrite_file(folder / "in.onnx", folder / "packed.onnx", Request(reads, packed=MASK, proof="float32"))
        return folder / "packed.onnx"

    return write


JOINED = [("absolute", "mean", (), False), ("rotary", "last", (), True), ("absolute", "hidden", ("y[mask]",), False)]


@pytest.mark.parametrize(("form", "pool", "reads", "left"), JOINED)
def test_padding_stands_where_it_changes_no_answer(
    form: str, pool: str, reads: Sequence[str], left: bool, packed: Packed
) -> None:
    proved = prove_joined(read_with_sidecars(packed(form, pool, *reads)), MASK)
    assert proved.error < 1e-5 < proved.tolerance
    assert proved.requests > 10
    outputs, features = (("y",), 2 + 16) if pool == "hidden" else ((), 2)
    assert proved.lengths == LengthPadding(MASK, ("input_ids", MASK), outputs, left, features)


def test_padding_of_a_mask_that_is_true_for_hidden_tokens_is_hidden(tmp_path: Path) -> None:
    onnx.save(hiding(export(Masked("absolute", "mean"))), tmp_path / "in.onnx")
    rewrite_file(tmp_path / "in.onnx", tmp_path / "packed.onnx", Request(packed=MASK, proof="float32"))
    lengths = prove_joined(read_with_sidecars(tmp_path / "packed.onnx"), MASK).lengths
    assert (lengths.hides, lengths.left) == (True, False)
    texts = [{"input_ids": np.ones((1, n), np.int64), MASK: np.zeros((1, n), bool)} for n in (2, 1)]
    assert lengths.groups(texts) == [[1, 0]]
    assert lengths.join(texts)[MASK].tolist() == [[False, False], [False, True]]


def test_a_file_that_reads_the_last_place_behind_absolute_positions_runs_apart(packed: Packed, tmp_path: Path) -> None:
    file = packed("absolute", "last")
    printed = ok(tmp_path / "models", "publish", str(file), *AS_ENCODER)
    assert "Requests of different lengths run apart: with padding behind a text y is off by" in printed
    assert "joined_lengths" not in read_config(tmp_path / "models" / "encoder").parameters


def test_a_version_joins_only_what_its_own_publication_proved(packed: Packed, tmp_path: Path) -> None:
    ok(tmp_path / "models", "publish", str(packed("absolute", "mean")), *AS_ENCODER)
    version = tmp_path / "models" / "encoder" / "1"
    told = LengthPadding.from_json(read_config(version.parent).parameters["joined_lengths"].string_value)
    assert is_proved(told, version)
    assert not is_proved(replace(told, left=True), version)
    manifest = json.loads((version / "manifest.json").read_text())
    del manifest["joined_lengths"]
    (version / "manifest.json").write_text(json.dumps(manifest))
    assert not is_proved(told, version)


def test_a_file_that_reads_its_padding_is_found_out(tmp_path: Path) -> None:
    """Not packed, though it says so: its mean is over every place."""
    onnx.save(export(Masked("absolute", "plain")), tmp_path / "in.onnx")
    artifact = foreign_artifact(tmp_path / "in.onnx")
    with pytest.raises(NotJoined, match="with padding before a text y is off by"):
        prove_joined(artifact, MASK)


def swap(lengths: LengthPadding, requests: Any, true: Callable[..., Any]) -> Any:
    """The rows of two requests change places."""
    return {name: array[::-1] for name, array in true(lengths, requests).items()}


def show(lengths: LengthPadding, requests: Any, true: Callable[..., Any]) -> Any:
    """Padding is not hidden."""
    return {name: np.maximum(array, 1) for name, array in true(lengths, requests).items()}


@pytest.mark.parametrize("fault", [swap, show])
def test_a_planted_fault_of_the_server_is_found(
    fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, packed: Packed
) -> None:
    artifact = read_with_sidecars(packed("absolute", "mean"))
    true = LengthPadding.join
    monkeypatch.setattr(LengthPadding, "join", lambda self, requests: fault(self, requests, true))
    with pytest.raises(NotJoined, match="off by"):
        prove_joined(artifact, MASK)


def test_numbers_that_may_count_from_a_text_s_end_run_apart(packed: Packed, tmp_path: Path) -> None:
    model = onnx.load(packed("absolute", "mean"))
    place = onnx.helper.make_tensor_value_info("place", onnx.TensorProto.INT64, ["batch"])
    model.graph.input.append(place)
    onnx.save(model, tmp_path / "other.onnx")
    sample = Sample.read(packed("absolute", "mean").with_suffix(".npz"))
    sample.inputs["place"] = np.zeros(len(sample.inputs[MASK]), np.int64)
    (tmp_path / "other.npz").write_bytes(sample.to_bytes())
    artifact = foreign_artifact(tmp_path / "other.onnx")
    with pytest.raises(NotJoined, match="place may count tokens from a text's end"):
        prove_joined(artifact, MASK)


@pytest.mark.parametrize("mask", ["other", "y"])
def test_a_mask_that_the_file_lacks_is_named(mask: str, packed: Packed) -> None:
    with pytest.raises(NotJoined, match=f"expected a mask '{mask}'"):
        prove_joined(read_with_sidecars(packed("absolute", "mean")), mask)


def test_the_name_of_an_output_s_first_axis_does_not_count(packed: Packed, tmp_path: Path) -> None:
    """An exporter that is not told that it is the batch invents a name."""
    for suffix in (".json", ".npz"):
        shutil.copy(packed("absolute", "mean").with_suffix(suffix), tmp_path / f"other{suffix}")
    model = onnx.load(packed("absolute", "mean"))
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "Gathery_dim_0"
    onnx.save(model, tmp_path / "other.onnx")
    artifact = foreign_artifact(tmp_path / "other.onnx")
    told, lines = prove_joining(artifact.with_origin(packed=MASK))
    assert told.origin.joined_rows
    assert len(lines) == 1
    assert "Requests of different lengths run together" in lines[0]


@pytest.mark.live
def test_the_server_joins_lengths_and_gives_each_its_own_answer(packed: Packed, tmp_path: Path) -> None:
    files = {"mean": packed("absolute", "mean"), "hidden": packed("absolute", "hidden", "y[mask]")}
    for name, file in files.items():
        printed = ok(tmp_path, "publish", str(file), "--name", name)
        assert "Requests of different lengths run together: 16 requests beside each alone" in printed
        config = read_config(tmp_path / name)
        assert not any(given.allow_ragged_batch for given in config.input)  # the native backend would refuse the file
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, VOCABULARY, (1, int(tokens))) for tokens in rng.integers(1, 100, 80)]
    with running_server(tmp_path) as server, http.InferenceServerClient(server.http_url) as client:
        for name, file in files.items():
            original = ort.InferenceSession(file)
            for _ in range(10):  # on a busy machine the texts of one round may arrive apart
                with ThreadPoolExecutor(12) as clients:
                    found = list(clients.map(partial(ask, server.http_url, name), texts))
                for one, ids in zip(found, texts, strict=True):
                    alone = original.run(None, {"input_ids": ids, MASK: np.ones_like(ids)})[0]
                    np.testing.assert_allclose(one, alone, rtol=0, atol=1e-5)
                (counts,) = client.get_inference_statistics(name)["model_stats"]
                if joined := counts["execution_count"] < counts["inference_count"]:
                    break
            assert joined
            assert all(given["allow_ragged_batch"] for given in client.get_model_config(name)["input"])


def ask(url: str, model: str, ids: Array) -> Array:
    inputs = [http.InferInput(name, ids.shape, "INT64") for name in ("input_ids", MASK)]
    for given, array in zip(inputs, (ids, np.ones_like(ids)), strict=True):
        given.set_data_from_numpy(array)
    with http.InferenceServerClient(url) as client:
        found: Array = client.infer(model, inputs).as_numpy("y")
        return found
