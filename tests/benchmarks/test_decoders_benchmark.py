from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from commands import measured

from benchmarks.measure.decoder_networks import AS_EXPORTED, DECODERS, PRUNED, random_network
from benchmarks.measure.foreign_candidates import OURS
from benchmarks.measure.result_file import read
from benchmarks.presets import decoders
from benchmarks.reporting.tables.foreign import decoders as table_of

for library in ("onnxruntime_genai", "transformers"):
    pytest.importorskip(library, reason=f"{library} is not installed (extra `foreign`)")

SMALL = {"vocab_size": 10000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 1}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_every_decoder_is_prepared_once_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the builder's two a decoder with Gemma's two kinds of attention in SmolLM2's int4."""
    small = {name: replace(decoder, sizes=decoder.sizes | SMALL) for name, decoder in DECODERS.items()}
    assert random_network(small.pop("smollm2-135m")).config.num_key_value_heads == 1
    small["gemma-3-270m"] = replace(small["gemma-3-270m"], precision=small.pop("smollm2-135m-int4").precision)
    monkeypatch.setattr(decoders, "DECODERS", small)
    monkeypatch.setattr("benchmarks.measure.interleaved_timing.MOST_ROUNDS", 2)
    folder, path = tmp_path / "files", tmp_path / "decoders.json"
    for name, decoder in small.items():
        decoders.prepare(decoder, folder / name)
    prepared = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    _, written = measured(decoders.decoders, path, folder)
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == prepared
    rows, table = written["rows"], table_of(read(path)).markdown
    for name in small:
        of_decoder = [row for row in rows if row["network"] == name]
        reranker = name.startswith("qwen3")
        candidates = {AS_EXPORTED, OURS} if reranker else {AS_EXPORTED, OURS, PRUNED}
        assert {row["candidate"] for row in of_decoder} == candidates
        assert {row["kind"] for row in of_decoder} == {"prefill", *([] if reranker else ["first token", "decoding"])}
        macs = {row["candidate"]: row["macs"] for row in of_decoder}
        assert len(re.findall(rf"^\| {re.escape(small[name].title)} +\|", table, re.M)) == (1 if reranker else 3)
        assert macs[OURS] < macs.get(PRUNED, macs[AS_EXPORTED]) <= macs[AS_EXPORTED]
