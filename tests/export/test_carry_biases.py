from dataclasses import replace

import pytest
import torch
from networks import SMALL, error, network
from torch import nn

from export.rewrites import biases
from export.rewrites.biases import QueryBiasAttention, carry_biases
from export.rewrites.errors import DoesNotApply
from export.rewrites.fold import fold_batchnorm
from export.rewrites.pipeline import ALL, apply
from models.config import ModelConfig

BIASES = ("qkv.bias", "query.bias", "query_bias", "value.bias", "out.bias")


def attention_biases(model: nn.Module) -> set[str]:
    return {name.removeprefix("blocks.") for name in model.state_dict() if name.endswith(BIASES)}


def test_no_bias_is_left_in_the_attention_of_a_folded_vitbn() -> None:
    for rewritten in (fold_batchnorm(network(SMALL)), apply(network(SMALL), ALL[:3], ())[0]):
        assert attention_biases(rewritten)
        carried = carry_biases(rewritten)
        assert not attention_biases(carried)
        assert carried.get_submodule("blocks.1.ffn.linear2").bias is None
        assert carried.get_submodule("blocks.0.ffn.linear2").bias is not None
        assert error(rewritten, carried, SMALL) < 1e-10


def test_a_layernorm_takes_the_bias_of_the_query_and_keeps_that_of_the_output() -> None:
    config = replace(SMALL, model="vit")
    for model in (network(config), fold_batchnorm(network(config))):
        model.get_submodule("blocks.0.attention.qkv").bias = nn.Parameter(
            model.get_submodule("blocks.0.attention.qkv").weight.data @ torch.linspace(-1, 1, 16).double()
        )
        carried = carry_biases(model)
        assert error(model, carried, config) < 1e-10
        assert attention_biases(carried) == {"0.attention.out.bias", "1.attention.out.bias"}


def test_a_query_bias_that_no_shift_yields_stays() -> None:
    config = replace(SMALL, qkv_bias=True)
    carried = carry_biases(fold_batchnorm(network(config)))
    assert isinstance(carried.get_submodule("blocks.0").attention, QueryBiasAttention)
    assert not carried.get_submodule("blocks.0").attention.training
    assert attention_biases(carried) == {"0.attention.query_bias", "1.attention.query_bias"}
    assert error(network(config), carried, config) < 1e-10


def test_a_shift_too_large_for_float32_is_not_made() -> None:
    model = fold_batchnorm(network(SMALL))
    qkv = model.get_submodule("blocks.0.attention.qkv")
    qkv.bias.data = qkv.weight.data @ torch.full((16,), 101.0).double()
    carried = carry_biases(model)
    assert attention_biases(carried) == {"0.attention.query_bias"}
    assert error(model, carried, SMALL) < 1e-10


def test_where_no_bias_costs_anything_none_is_carried() -> None:
    with pytest.raises(DoesNotApply, match="expected a bias that costs time, found none"):
        carry_biases(carry_biases(network(replace(SMALL, model="vit", heads=1))))
    with pytest.raises(DoesNotApply, match="CNN: there is no attention"):
        carry_biases(network(ModelConfig(model="cnn")))


@pytest.mark.parametrize(
    ("part", "model"),
    [
        *(("_of_equal_tokens", model) for model in ("vitbn", "vitbnffn", "vit")),
        *(("_shift_instead_of_bias", model) for model in ("vitbn", "vitbnffn", "vit")),
        ("_shift_rows", "vitbn"),  # the other networks shift no rows at the start
    ],
)
def test_a_wrong_shift_is_seen(part: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(biases, part)

    def wrong(*arguments: object) -> object:
        if part == "_shift_rows":
            return None
        value = real(*arguments)
        return None if value is None else value * 1.001

    monkeypatch.setattr(biases, part, wrong)
    folded = fold_batchnorm(network(replace(SMALL, model=model)))
    assert error(folded, carry_biases(folded), SMALL) > 1e-6
