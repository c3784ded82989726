from dataclasses import replace

import pytest
import torch
from random_networks import network

from models.checkpoint import CheckpointError, load, save
from models.config import ConfigError, ModelConfig

SMALL = ModelConfig(depth=2, dim=16, heads=4, dim_head=16, mlp_dim=24)
JOINING = replace(SMALL, class_attention=(3, 5))


def answer(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model(x)


def test_blocks_before_the_last_do_not_see_the_token() -> None:
    model = network(JOINING)
    seen: list[tuple[int, ...]] = []
    for block in model.get_submodule("blocks").children():
        block.register_forward_pre_hook(lambda block, inputs: seen.append(tuple(inputs[0].shape)))
    answer(model, torch.rand(3, 1, 28, 28))
    assert seen == [(3, 16, 16), (3, 17, 16)]
    assert [block.attention.heads for block in model.get_submodule("blocks").children()] == [4, 3]


def test_a_file_keeps_it(tmp_path) -> None:
    model, path = network(JOINING), tmp_path / "network.safetensors"
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
