"""Writes decoders with random weights as ONNX files, from configurations of the package transformers.

In: a `Decoder` and a folder. Out: a subfolder for each candidate: as exported, rewritten, and built with the option
`prune_lm_head` of onnxruntime-genai's builder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure.foreign_candidates import OURS
from benchmarks.measure.foreign_networks import IDS, MASK, exported, library

AS_EXPORTED, PRUNED = "as exported", "prune_lm_head"
LAST_ROW = ("logits[:,-1:]", "*")
TWO_COLUMNS = ("logits[:,-1,[9693,2152]]",)  # "yes" and "no" of Qwen3's rerankers

# The builder 0.18 reads a field of Gemma 3 that transformers 5 no longer has.
BUILDER = """
import json, runpy, sys, transformers
transformers.Gemma3TextConfig.rope_local_base_freq = 1e4
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")
"""


@dataclass(frozen=True)
class Decoder:
    """`family`: prefix of the class names in transformers. `sizes`: fields of its configuration.

    `precision`: of onnxruntime-genai's builder; empty: PyTorch exports the file, without past keys and values.
    """

    title: str
    family: str
    sizes: Mapping[str, Any]
    precision: str = "fp32"

    @property
    def reads(self) -> tuple[str, ...]:
        """The parts of the outputs that an application reads."""
        return LAST_ROW if self.precision else TWO_COLUMNS


SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "max_position_embeddings": 2048}
SMOLLM2 = SPECIAL | {
    **{"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30},
    **{"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True},
}
ROPE = {"rope_type": "default", "rope_theta": 1e6}
ROPE_BY_ATTENTION = {"full_attention": ROPE, "sliding_attention": ROPE | {"rope_theta": 1e4}}
GEMMA3 = SPECIAL | {
    **{"vocab_size": 262144, "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18},
    **{"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512},
    **{"rope_parameters": ROPE | ROPE_BY_ATTENTION},  # the builder 0.18 also reads a base outside the two
}
QWEN3 = SPECIAL | {
    **{"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 6},
    **{"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True},
}

DECODERS: Mapping[str, Decoder] = {
    "smollm2-135m": Decoder("SmolLM2-135M", "Llama", SMOLLM2),
    "smollm2-135m-int4": Decoder("SmolLM2-135M, int4", "Llama", SMOLLM2, "int4"),
    "gemma-3-270m": Decoder("Gemma-3-270M", "Gemma3", GEMMA3),
    "qwen3-reranker-6": Decoder("Qwen3-0.6B's reranker, 6 layers, two columns", "Qwen3", QWEN3, ""),
}


def prepare(decoder: Decoder, folder: Path) -> None:
    """Writes all candidates to `folder`, unless the folder exists.

    Raises ForeignError, ImportError, OSError; ChildProcessError if the builder fails.
    """
    from export.rewrite_file import Request, rewrite_file

    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as name:
        checkpoint, candidates = Path(name, "checkpoint"), Path(name, "candidates")
        plain, ours = candidates / AS_EXPORTED, candidates / OURS
        network = random_network(decoder)
        if decoder.precision:
            network.save_pretrained(checkpoint)
            _write_tokenizer(checkpoint)
            _build(decoder, checkpoint, {plain: "false", candidates / PRUNED: "true"})
        else:
            _export(network, plain)
        del network
        ours.mkdir()
        for file in plain.glob("*.json"):
            shutil.copy(file, ours)
        rewrite_file(plain / "model.onnx", ours / "model.onnx", Request(reads=decoder.reads, proof="float32"))
        candidates.rename(folder)


def random_network(decoder: Decoder) -> Any:
    """The decoder in PyTorch, with random weights and norms."""
    import torch

    transformers, family = library("transformers"), decoder.family
    config = getattr(transformers, f"{family}TextConfig" if family == "Gemma3" else f"{family}Config")
    torch.manual_seed(0)
    network = getattr(transformers, f"{family}ForCausalLM")(config(**decoder.sizes)).eval()
    for parameter in network.parameters():
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return network


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The prepared candidates and their folders."""
    return ((name, folder / name) for name in (AS_EXPORTED, OURS, PRUNED) if (folder / name).is_dir())


def _write_tokenizer(folder: Path) -> None:
    """Writes the tokenizer that the builder demands; no measurement uses it."""
    from tokenizers import Tokenizer, models

    words = models.WordLevel({"<pad>": 0, "<bos>": 1, "<eos>": 2, "<unk>": 3}, unk_token="<unk>")
    tokenizer = library("transformers").PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), eos_token="<eos>")
    tokenizer.save_pretrained(folder)


def _build(decoder: Decoder, checkpoint: Path, pruned: Mapping[Path, str]) -> None:
    """Runs onnxruntime-genai's builder for each folder, in a single process: each process imports PyTorch.

    `pruned`: folder -> the option `prune_lm_head`. Raises ChildProcessError if the builder fails.
    """
    words = ["-i", str(checkpoint), "-p", decoder.precision, "-e", "cpu", "-c", str(checkpoint / "cache")]
    runs = [[*words, "-o", str(folder), "--extra_options", f"prune_lm_head={way}"] for folder, way in pruned.items()]
    command = [sys.executable, "-c", BUILDER, json.dumps(runs)]
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    if run.returncode:
        raise ChildProcessError(
            f"onnxruntime_genai.models.builder: expected a model, found {run.stderr.splitlines()[-1]}"
        )


def _export(network: Any, folder: Path) -> None:
    """Exports the network without past keys and values."""
    import torch

    folder.mkdir(parents=True)
    network.config.use_cache = False
    ids, free = torch.ones(2, 16, dtype=torch.int64), {0: "batch", 1: "sequence_length"}
    arguments, names, path = (ids, torch.ones_like(ids)), [IDS, MASK], folder / "model.onnx"
    exported(network, arguments, names, free, path, outputs=["logits"], weights_apart=True)
