from dataclasses import replace

import pytest
import torch
from networks import SMALL, answer, network, pixels, rewritten_in_turn

from export.rewrites import biases
from export.rewrites.absorb import AbsorbedAttention
from export.rewrites.fold import fold_batchnorm
from export.rewrites.pipeline import ALL, apply
from models.checkpoint import CheckpointError, load, save
from models.config import ConfigError, ModelConfig
from models.macs import macs_per_image
from models.vit import VisionTransformer

JOINING = replace(SMALL, class_attention=(3, 5))
CONFIGS = [
    *(replace(JOINING, model=model, depth=depth) for model in ("vitbn", "vit", "vitbnffn") for depth in (1, 2, 3)),
    replace(JOINING, model="vit", qkv_bias=True),
    replace(JOINING, qkv_bias=True, pos_emb="pe1d"),
    ModelConfig(depth=2, dim=32, dim_head=16, class_attention=(32, 16)),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.model}-{c.depth}-{c.qkv_bias}")
def test_each_rewrite_is_exact(config: ModelConfig) -> None:
    model, x = network(config), pixels(config)
    expected = answer(model, x / 255)
    assert isinstance(model, VisionTransformer)
    model.last_block = "row"
    assert (answer(model, x / 255) - expected).abs().max() < 1e-10
    model.last_block = "all"
    for used in (ALL, [rewrite for rewrite in ALL if rewrite.__name__ != "cls_only"]):
        rewritten, _ = rewritten_in_turn(model, x, used, 1e-10)  # measured: at most 2e-15
        assert macs_per_image(rewritten) <= macs_per_image(model)


def test_blocks_before_the_last_do_not_see_the_token() -> None:
    model = network(JOINING)
    seen: list[tuple[int, ...]] = []
    for block in model.get_submodule("blocks").children():
        block.register_forward_pre_hook(lambda block, inputs: seen.append(tuple(inputs[0].shape)))
    answer(model, pixels(JOINING) / 255)
    assert seen == [(3, 16, 16), (3, 17, 16)]
    assert [block.attention.heads for block in model.get_submodule("blocks").children()] == [4, 3]


def test_the_last_block_is_absorbed_with_its_own_heads() -> None:
    rewritten, _ = apply(network(CONFIGS[-1]), ALL, ())
    attention = rewritten.get_submodule("blocks.1.attention")
    assert isinstance(attention, AbsorbedAttention)
    assert attention.heads == 32
    assert macs_per_image(rewritten) == 559_936


@pytest.mark.parametrize("rows", [slice(1), slice(1, None)], ids=["token", "patches"])
def test_a_shift_that_some_rows_miss_is_seen(rows: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    real = biases._shift_rows
    monkeypatch.setattr(biases, "_shift_rows", lambda e, shift, where: None if where == rows else real(e, shift, where))
    folded = fold_batchnorm(network(JOINING))
    x = pixels(JOINING) / 255
    assert (answer(folded, x) - answer(biases.carry_biases(folded), x)).abs().max() > 1e-6


def test_a_file_keeps_it(tmp_path) -> None:
    model, path = network(JOINING).float(), tmp_path / "network.safetensors"
    save(path, model, JOINING, {})
    read = load(path)
    assert read.config == JOINING
    assert torch.equal(answer(read.model, torch.zeros(1, 1, 28, 28)), answer(model, torch.zeros(1, 1, 28, 28)))
    with pytest.raises(CheckpointError, match="expected all 2 blocks, found --depth 1"):
        load(path, depth=1)


@pytest.mark.parametrize(
    "wrong", [{"class_attention": (0, 4)}, {"pool": "mean"}, {"model": "cnn"}, {"model": "vit-dtn"}]
)
def test_what_cannot_have_class_attention_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="class_attention: expected"):
        replace(JOINING, **wrong)
