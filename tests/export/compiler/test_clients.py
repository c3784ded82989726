"""Rewritten files in the programs that load such files: onnxruntime-genai, sentence-transformers and optimum.

`make test-clients` installs the last two, which need an older transformers, into an environment of their own.
"""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from decoder_networks import DEPTH, DIM, GROUPS, HEADS, INPUTS, SIZE, WORDS, check_answers, export
from foreign_networks import wrote

from export.compiler.proof.runner import Runner

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # those of others
LAST = ("--read", "logits[:,-1:]", "--read", "*")
SPECIAL = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<unk>": 3}
SHAPE = {
    **{"vocab_size": 384, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
LONGEST: dict[str, dict[str, int]] = {"Llama": {}, "Phi3": {"original_max_position_embeddings": 512}}
PROMPT = np.random.default_rng(0).integers(4, WORDS, 40).astype(np.int32)


def need(library: str, extra: str) -> Any:
    return pytest.importorskip(library, reason=f"{library} is not installed (extra `{extra}`)")


def rewritten(folder: Path, *reads: str) -> Path:
    """A copy of a model's folder with the rewritten file."""
    fast = folder.with_name(f"{folder.name}-fast")
    shutil.copytree(folder, fast, ignore=shutil.ignore_patterns("model.onnx*"))
    wrote(folder / "model.onnx", "-o", fast / "model.onnx", *reads)
    return fast


def drawn(family: str, kind: str, folder: Path, **sizes: Any) -> Any:
    """A folder as from a hub: configuration, weights and tokenizer of a network of transformers."""
    transformers = import_module("transformers")
    tokenizers = import_module("tokenizers")
    torch.manual_seed(0)
    network = getattr(transformers, f"{family}{kind}")(getattr(transformers, f"{family}Config")(**sizes)).eval()
    for parameter in network.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    network.save_pretrained(folder)
    words = SPECIAL | {f"w{number}": number for number in range(4, 384)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "bos", "eos", "unk")}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return network


def own_decoder(folder: Path) -> Path:
    """A file of PyTorch's exporter, with the configuration that onnxruntime-genai needs."""
    folder.mkdir()
    onnx.save(export(), folder / "model.onnx")
    pasts = {f"past_{kind}_names": f"past_key_values.%d.{kind}" for kind in ("key", "value")}
    presents = {f"present_{kind}_names": f"present.%d.{kind}" for kind in ("key", "value")}
    decoder = {
        **{"filename": "model.onnx", "head_size": SIZE, "hidden_size": DIM, "num_attention_heads": HEADS},
        **{"num_key_value_heads": GROUPS, "num_hidden_layers": DEPTH},
        **{"inputs": {name: name for name in INPUTS} | pasts, "outputs": {"logits": "logits"} | presents},
    }
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model = {"type": "llama", "context_length": 512, "vocab_size": WORDS, "decoder": decoder} | ids
    search = {"max_length": 512, "past_present_share_buffer": False}
    (folder / "genai_config.json").write_text(json.dumps({"model": model, "search": search}))
    return folder


def built(family: str, precision: str, folder: Path) -> Path:
    """By onnxruntime-genai's builder."""
    need("transformers", "foreign")
    drawn(family, "ForCausalLM", source := folder.with_name("source"), **SHAPE | LONGEST[family])
    places = ["-i", str(source), "-o", str(folder), "-c", str(folder.with_name("cache"))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr(sys, "argv", ["builder", "-e", "cpu", "-p", precision, *places])
        runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")
    return folder


def check_same(plain: Path, fast: Path, grouped: bool = False) -> None:
    """Equal outputs at four lengths, in batches of one and two with padding on the left, with and without a past."""
    before, after = Runner(plain / "model.onnx"), Runner(fast / "model.onnx")
    rng, pasts = np.random.default_rng(1), [value for value in before.session.get_inputs() if "past" in value.name]
    for batch, new, past in product((1, 2), (1, 2, 5, 33), (0, 7) if pasts else (0,)):
        if grouped and past and min(batch, new) > 1:  # GroupQueryAttention refuses it
            continue
        mask = np.ones((batch, past + new), np.int64)
        mask[1:, : min(2, past + new - 1)] = 0
        positions = np.clip(mask.cumsum(1) - 1, 0, None)[:, past:]
        feeds = {"input_ids": rng.integers(4, WORDS, (batch, new)), "attention_mask": mask, "position_ids": positions}
        for value in pasts:  # the builder leaves the size of a head free
            size = value.shape[3] if isinstance(value.shape[3], int) else 16
            feeds[value.name] = rng.standard_normal((batch, GROUPS, past, size), np.float32)
        feeds = {value.name: feeds[value.name] for value in before.session.get_inputs()}
        expected = before(feeds)
        check_answers(expected | {"logits": expected["logits"][:, -1:]}, after(feeds))


def generate(folder: Path, chunks: Sequence[Any], answer: int = 0) -> list[int]:
    """Greedy tokens: `answer` after each chunk but the last, 20 after that."""
    og: Any = import_module("onnxruntime_genai")
    parameters = og.GeneratorParams(model := og.Model(str(folder)))
    parameters.set_search_options(do_sample=False, max_length=200, min_length=200)
    generator = og.Generator(model, parameters)
    for number, chunk in enumerate(chunks, start=1):
        generator.append_tokens(chunk)
        for _ in range(answer if number < len(chunks) else 20):
            generator.generate_next_token()
    tokens: list[int] = generator.get_sequence(0).tolist()
    return tokens


@pytest.mark.parametrize(("family", "precision"), [("own", "fp32"), ("Llama", "fp32"), ("Phi3", "int4")])
def test_the_tokens_of_onnxruntime_genai(family: str, precision: str, tmp_path: Path) -> None:
    need("onnxruntime_genai", "dev")
    folder = tmp_path / "model"
    plain = own_decoder(folder) if family == "own" else built(family, precision, folder)
    check_same(plain, fast := rewritten(plain, *LAST), grouped=family != "own")
    chunked, chat = np.split(PROMPT, (1, 6, 25)), np.split(PROMPT, (10, 13))
    cases = [([PROMPT], 0), ([PROMPT[:1]], 0), (chunked, 0)]
    if family != "own":  # og continues no chat of a file whose caches grow
        cases.append((chat, 7))
    for chunks, answer in cases:
        expected = generate(plain, chunks, answer)
        assert len({*expected[-20:]}) > 2  # not one token for ever
        assert generate(fast, chunks, answer) == expected
    assert generate(plain, chunked) == generate(plain, [PROMPT])


def test_the_tokens_notice_a_wrong_row(tmp_path: Path) -> None:
    need("onnxruntime_genai", "dev")
    plain = own_decoder(tmp_path / "model")
    wrong = rewritten(plain, "--read", "logits[:,0:1]", "--read", "*")
    assert generate(wrong, [PROMPT]) != generate(plain, [PROMPT])


def test_a_cross_encoder_of_sentence_transformers(tmp_path: Path) -> None:
    exporters = need("optimum.exporters.onnx", "clients")
    CrossEncoder = need("sentence_transformers", "clients").CrossEncoder  # noqa: N806
    sizes = {"vocab_size": 384, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_labels": 1}
    drawn("Bert", "ForSequenceClassification", tmp_path / "hub", num_attention_heads=4, pad_token_id=0, **sizes)
    exporters.main_export(str(tmp_path / "hub"), tmp_path / "model", task="text-classification", do_validation=False)
    fast = rewritten(tmp_path / "model")
    pairs = [("w5 w6 w7", "w8 w9"), ("w10", "w11 w12 w13 w14"), ("w5 w6 w7", "w300")]
    scores = [
        CrossEncoder(str(folder), backend="onnx", model_kwargs={"file_name": "model.onnx"}).predict(pairs)
        for folder in (tmp_path / "model", fast)
    ]
    assert np.ptp(scores[0]) > 1e-3
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-6)


@pytest.mark.parametrize(("family", "past"), [("Llama", False), ("Phi3", True)])
def test_pytorch_s_exporter_at_any_length(family: str, past: bool, tmp_path: Path) -> None:
    """Of one layer, as tracing takes most of the time."""
    transformers = need("transformers", "foreign")
    network = drawn(family, "ForCausalLM", tmp_path / "hub", **SHAPE | LONGEST[family] | {"num_hidden_layers": 1})

    class WithPast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, ids: Any, mask: Any, cache: list[Any]) -> tuple[Any, ...]:
            held = transformers.DynamicCache() if past else None
            for layer in range(len(cache) // 2):
                held.update(cache[2 * layer], cache[2 * layer + 1], layer)
            made = self.network(input_ids=ids, attention_mask=mask, past_key_values=held, use_cache=past)
            kept = (
                [each for layer in made.past_key_values.layers for each in (layer.keys, layer.values)] if past else []
            )
            return made.logits, *kept

    names = ["0.key", "0.value"] if past else []
    ids, cache = torch.randint(4, 384, (2, 5)), [torch.randn(2, 2, 3, 16) for _ in names]
    mask = torch.ones(2, 8 if past else 5, dtype=torch.int64)
    (tmp_path / "model").mkdir()
    free = {0: "batch", 1: "new"}, {0: "batch", 1: "total" if past else "new"}, [{0: "batch", 2: "past"} for _ in names]
    with torch.no_grad():
        torch.onnx.export(
            WithPast().eval(),
            (ids, mask, cache),
            tmp_path / "model" / "model.onnx",
            input_names=["input_ids", "attention_mask", *(f"past_key_values.{name}" for name in names)],
            output_names=["logits", *(f"present.{name}" for name in names)],
            dynamic_shapes=free,
            dynamo=True,
            verbose=False,
        )
    check_same(tmp_path / "model", rewritten(tmp_path / "model", *LAST))


def test_optimum_generates(tmp_path: Path) -> None:
    exporters = need("optimum.exporters.onnx", "clients")
    loader = need("optimum.onnxruntime", "clients").ORTModelForCausalLM
    drawn("Llama", "ForCausalLM", tmp_path / "hub", **SHAPE)
    task = "text-generation-with-past"
    exporters.main_export(str(tmp_path / "hub"), tmp_path / "model", task=task, do_validation=False)
    check_same(tmp_path / "model", fast := rewritten(tmp_path / "model", *LAST))
    ids, mask = torch.randint(4, 384, (2, 9)), torch.ones(2, 9, dtype=torch.int64)
    ids[1, :4], mask[1, :4] = 0, 0
    tokens = [
        loader.from_pretrained(folder).generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=20, min_new_tokens=20, do_sample=False
        )
        for folder in (tmp_path / "model", fast)
    ]
    assert tokens[0].shape == (2, 29)
    assert tokens[0].tolist() == tokens[1].tolist()
