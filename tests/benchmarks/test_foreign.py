from pathlib import Path

import onnxruntime
import pytest
from commands import measured

from benchmarks import foreign as module
from benchmarks.foreign import BATCHES, foreign
from benchmarks.measure.foreign_candidates import BASES, OPENVINO_OURS, OPTIMISER, OURS, PLAIN, TOLERANCE
from benchmarks.measure.foreign_networks import Foreign
from export.checkpoint_to_onnx import Form
from export.checkpoint_to_version import export_checkpoint
from export.engines.gpu import find_gpu
from export.publishing.sidecar import write_with_sidecars
from models.catalog import shipped


def plain(folder: Path) -> Path:
    write_with_sidecars(path := folder / "plain.onnx", export_checkpoint(shipped("vitbn-tiny"), Form("none")).artifact)
    return path


@pytest.mark.slow
def test_a_network_is_timed_plain_optimised_and_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NETWORKS", {"vit-tiny": Foreign("Ours", plain, "vit")})
    monkeypatch.setattr("benchmarks.measure.foreign_candidates._openvino", wrong_if_rewritten)
    printed, written = measured(
        foreign, tmp_path / "foreign.json", "--network", "vit-tiny", "--seconds", 1, "--device", "cpu"
    )
    rows = {(row["batch"], row["candidate"]): row for row in written["rows"]}
    assert rows.keys() == {(batch, name) for batch in BATCHES["cpu"] for name in (PLAIN, *BASES)}
    for (batch, name), row in rows.items():
        assert (row["network"], row["title"], row["norms"]) == ("vit-tiny", "Ours", [5, 0])
        assert [*row["macs_after"].values()][-1] < row["macs"] / 10
        if name == OPENVINO_OURS:
            assert row["reason"].startswith("its answers differ by "), "a wrong answer is not timed"
        else:
            assert (row["times_as_fast"] is None) == (name == PLAIN)
            assert len(row["samples_ns"]) == len(rows[batch, PLAIN]["samples_ns"])
    assert "its answers differ by" in printed


@pytest.mark.gpu
def test_a_gpu_measures_without_openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers() or find_gpu() is None:
        pytest.skip("no CUDA device, or ONNX Runtime for CPUs")
    monkeypatch.setattr(module, "NETWORKS", {"vit-tiny": Foreign("Ours", plain, "vit")})
    command = ("--network", "vit-tiny", "--seconds", 1, "--device", "cuda")
    _, written = measured(foreign, tmp_path / "foreign.json", *command)
    rows = {(row["batch"], row["candidate"]): row for row in written["rows"]}
    assert rows.keys() == {(batch, name) for batch in BATCHES["cuda"] for name in (PLAIN, OPTIMISER, OURS)}
    assert all("reason" not in row for row in rows.values())


def wrong_if_rewritten(path: Path, feeds: dict[str, object]) -> object:
    from export.compiler.proof.runner import session

    run, wrong = session(path), OURS in path.stem
    return lambda: [answer * (1 + 2 * TOLERANCE * wrong) for answer in run.run(None, feeds)]
