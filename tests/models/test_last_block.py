from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from pytorch_macs import macs_per_image
from random_networks import network
from torch import nn

from models.networks import layers
from models.networks.config import TRANSFORMER_NAMES, ModelConfig, ModelName
from models.networks.registry import build
from models.networks.vit import NORMS, cheaper_attention, row_attention
from models.training import state
from models.training.recipe import TrainingOptions

SMALL = ModelConfig(depth=2, dim=16, heads=4, dim_head=16, mlp_dim=24)
SERVED = [name for name in TRANSFORMER_NAMES if name != "vit-dtn"]
CONFIGS = [
    *(replace(SMALL, model=name, depth=depth, qkv_bias=depth == 2) for name in SERVED for depth in (1, 2)),
    ModelConfig(depth=1, heads=32, dim_head=16, mlp_dim=256),
    ModelConfig(depth=2),
    replace(SMALL, heads=1, pos_emb="pe1d", dropout=0.5, emb_dropout=0.5),
]


def answers(model: nn.Module, config: ModelConfig) -> tuple[torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(32, *config.input_shape, generator=generator)
    labels = torch.randint(config.num_classes, (32,), generator=generator)
    logits = model(images)
    F.cross_entropy(logits, labels).backward()
    return logits.detach(), [torch.zeros(()) if p.grad is None else p.grad.clone() for p in model.parameters()]


def largest_differences(config: ModelConfig, training: bool = False) -> tuple[float, float]:
    """Errors of the logits (relative to the largest) and of the gradients."""
    return between(network(config), network(config, attention=row_attention), config, training)


def between(plain: nn.Module, other: nn.Module, config: ModelConfig, training: bool) -> tuple[float, float]:
    logits, gradients = answers(plain.train(training), config)
    other_logits, other_gradients = answers(other.train(training), config)
    pairs = zip(gradients, other_gradients, strict=True)
    scale = max(1.0, float(logits.abs().max()))
    return float((logits - other_logits).abs().max()) / scale, max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("in_training", [False, True])
@pytest.mark.parametrize("model", ["vit", "vitbnffn", "vitbn"])
def test_the_published_form_trains_absorbed_with_the_same_statistics(model: ModelName, in_training: bool) -> None:
    config = ModelConfig(model=model, depth=2)
    absorbed = network(config, attention=cheaper_attention)
    of_logits, of_gradients = between(plain := network(config), absorbed, config, in_training)
    assert of_logits <= 2e-6  # measured: at most 5e-7
    assert of_gradients <= 1e-6  # measured: at most 1.2e-7
    assert operations(absorbed.eval()) < 0.65 * operations(plain.eval())
    for name, statistics in plain.named_buffers():
        assert torch.allclose(statistics, absorbed.get_buffer(name), rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.model}-{c.depth}-{c.heads}x{c.dim_head}")
def test_answers_and_gradients_are_those_of_the_network(config: ModelConfig) -> None:
    of_logits, of_gradients = largest_differences(config)
    assert of_logits <= 4e-7  # measured: at most 3.6e-7
    assert of_gradients <= 1e-6  # measured: at most 3e-7


@pytest.mark.parametrize("depth", [1, 2])
def test_in_training_mode_too_where_no_norm_looks_at_other_rows(depth: int) -> None:
    of_logits, of_gradients = largest_differences(replace(SMALL, model="vit", depth=depth, qkv_bias=True), True)
    assert of_logits <= 4e-7
    assert of_gradients <= 1e-6


def test_in_training_mode_the_last_statistics_are_those_of_cls_rows() -> None:
    of_logits, _ = largest_differences(SMALL, training=True)
    assert of_logits > 1e-3


@pytest.mark.parametrize(
    "config", [replace(SMALL, pool="mean"), replace(SMALL, model="vit-dtn"), ModelConfig(model="cnn")]
)
def test_a_network_whose_head_reads_more_is_left_as_it_is(config: ModelConfig) -> None:
    model = build(config, row_attention)
    assert not any(isinstance(module, layers.AbsorbedAttention) for module in model.modules())


def test_dropout_behind_a_value_bias_is_not_absorbed() -> None:
    """After dropout the weights do not sum to one, so the value bias is no constant."""
    config = replace(SMALL, qkv_bias=True, dropout=0.5)
    norm = partial(NORMS[config.model].tokens, config)
    plain, absorbed = layers.Attention(config, norm), layers.AbsorbedAttention(config, norm)
    absorbed.load_state_dict(plain.state_dict())
    x = torch.rand(8, 17, 16)
    for in_training in (False, True):
        found = []
        for attention in (plain.train(in_training), absorbed.train(in_training)):
            torch.manual_seed(0)
            found.append(attention(x))
        assert (found[0] - found[1]).abs().max() <= (0 if in_training else 1e-6)


@pytest.mark.parametrize("part", ["absorbed_query", "absorbed_output"])
def test_a_wrong_weight_is_seen(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(layers, part)

    def wrong(*arguments: object) -> object:
        result = real(*arguments)
        return result * 1.01 if isinstance(result, torch.Tensor) else (result[0] * 1.01, result[1])

    monkeypatch.setattr(layers, part, wrong)
    of_logits, of_gradients = largest_differences(replace(SMALL, depth=3, dim_head=32))
    assert of_logits > 4e-6
    assert of_gradients > 1e-5


@pytest.mark.parametrize(("depth", "share"), [(1, 0.1), (2, 0.4)])
def test_how_much_less_work_it_is(depth: int, share: float) -> None:
    model = network(ModelConfig(depth=depth))
    assert operations(network(ModelConfig(depth=depth), attention=row_attention)) < share * macs_per_image(model) * 64


def test_a_training_of_the_published_form_does_less_work_too() -> None:
    config = ModelConfig(depth=2)
    model = state.start(config, TrainingOptions(last_block="all", device="cpu"), 100, "key").model
    assert operations(model.eval()) < 0.65 * operations(network(config))


def operations(model: nn.Module) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(torch.zeros(64, 1, 28, 28))
    return int(counter.get_total_flops()) // 2
