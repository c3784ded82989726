import copy
from dataclasses import replace
from itertools import product

import pytest
import torch
from networks import answer, error, network, pixels
from torch import nn

from export.rewrites import fold as module
from export.rewrites.biases import carry_biases
from export.rewrites.errors import RewriteError
from export.rewrites.fold import Fold, fold_batchnorm, fold_input_scale
from models.config import MODEL_NAMES, ModelConfig, ModelName
from models.norms import Affine, DynamicFeatureNorm, RepBN, UnifiedNorm, batch_norm_affine
from models.registry import build, randomise_norms

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


SMALL = ModelConfig(depth=2, dim=24, heads=2, dim_head=8, mlp_dim=40)
OPTIONS = [
    replace(SMALL, model=model, pool=pool, pos_emb=pos_emb, bn_features=features, qkv_bias=bias)
    for model, pool, pos_emb, features, bias in product(
        ("vit", "vitbnffn", "vitbn"), ("cls", "mean"), ("learn", "pe1d"), ("dim", "one"), (False, True)
    )
] + [
    replace(SMALL, model=model, bn_features=features)
    for model, features in product(("vit-repbn", "vit-prepbn", "vit-un", "vit-dfn"), ("dim", "one"))
]
GEOMETRIES = [
    ModelConfig(model="cnn"),
    ModelConfig(model="dnn"),
    ModelConfig(model="dnnbn"),
    ModelConfig(model="dnnbn", channels=3, image_size=(5, 7), num_classes=2, labels=("no", "yes")),
    replace(SMALL, heads=1, dim_head=24),  # no output projection
    replace(SMALL, depth=1),
    replace(SMALL, channels=3, image_size=(28, 42), patch_size=(14, 7)),
    *(replace(SMALL, model=name, standardise=True, channels=2) for name in ("vit", "vitbnffn", "vitbn")),
    ModelConfig(),
]


@pytest.mark.parametrize(
    "config", OPTIONS + GEOMETRIES, ids=lambda c: f"{c.model}-{c.pool}-{c.pos_emb}-{c.bn_features}"
)
def test_a_folded_network_answers_as_the_original(config: ModelConfig) -> None:
    model, x = network(config), pixels(config)
    folded = fold_batchnorm(model)
    assert error(model, folded, config) < 1e-10
    assert not any(isinstance(module, BATCH_NORMS) for module in folded.modules())

    if config.is_transformer:
        folded = carry_biases(folded)
        assert error(model, folded, config) < 1e-10

    with torch.inference_mode():
        served = fold_input_scale(folded)(x)
        assert (served - model(x / 255)).abs().max() < 1e-10


def test_float32_in_float32_out() -> None:
    model = network(ModelConfig()).float()
    folded = fold_batchnorm(model)
    assert next(folded.parameters()).dtype == torch.float32
    x = pixels(ModelConfig()).float() / 255
    assert (answer(model, x) - answer(folded, x)).abs().max() < 1e-4


def test_a_norm_without_gamma_and_beta_fold_plan() -> None:
    model = network(SMALL)
    hidden = model.get_submodule("blocks.0.ffn.hidden_norm.norm")
    hidden.affine, hidden.weight, hidden.bias = False, None, None
    assert error(model, fold_batchnorm(model), SMALL) < 1e-10


def no_eps(name: str, norm: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    bn = norm.norm
    scale = bn.weight.data * bn.running_var.rsqrt()
    return scale, bn.bias.data - bn.running_mean * scale


def no_shift(name: str, norm: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    scale, shift = REAL_AFFINE(name, norm)
    return scale, torch.zeros_like(shift)


def no_scale(name: str, norm: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    scale, shift = REAL_AFFINE(name, norm)
    return torch.ones_like(scale), shift


def reversed_features(name: str, norm: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    scale, shift = REAL_AFFINE(name, norm)
    return scale.flip(0), shift


REAL_AFFINE = module.affine_of


@pytest.mark.parametrize("wrong", [no_eps, no_shift, no_scale, reversed_features], ids=lambda f: f.__name__)
def test_a_wrong_affine_map_is_seen(wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "affine_of", wrong)
    model = network(SMALL)
    assert error(model, fold_batchnorm(model), SMALL) > 1e-8


def without_skip(norm: RepBN) -> Affine:
    return batch_norm_affine(norm.norm)


def centred(norm: UnifiedNorm) -> Affine:
    scale = norm.weight.data * (norm.running_square + 1e-5).rsqrt()
    return scale, norm.bias.data - scale * norm.running_square


def without_eps(norm: UnifiedNorm) -> Affine:
    return norm.weight.data * norm.running_square.rsqrt(), norm.bias.data


def one_branch(norm: DynamicFeatureNorm) -> Affine:
    scale, shift = batch_norm_affine(norm.z_score)
    return norm.weight.data * scale, norm.weight.data * shift + norm.bias.data


@pytest.mark.parametrize(
    ("model", "norm", "wrong"),
    [
        ("vit-repbn", RepBN, without_skip),
        ("vit-prepbn", RepBN, without_skip),
        ("vit-un", UnifiedNorm, centred),
        ("vit-un", UnifiedNorm, without_eps),
        ("vit-dfn", DynamicFeatureNorm, one_branch),
    ],
)
def test_a_wrong_map_of_each_norm_is_seen(
    model: ModelName, norm: type[nn.Module], wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(SMALL, model=model)
    original = network(config)
    monkeypatch.setattr(norm, "eval_affine", wrong)
    assert error(original, fold_batchnorm(original), config) > 1e-8


@pytest.mark.parametrize("model", ["vit-un", "vit-dfn"])
def test_statistics_that_are_none_are_refused_by_name(model: ModelName) -> None:
    broken = network(replace(SMALL, model=model))
    name = {"vit-un": "norm.running_square", "vit-dfn": "norm.z_score.running_var"}[model]
    broken.get_buffer(name)[3] = -0.5
    with pytest.raises(RewriteError, match=rf"{name}: expected variances of at least 0, found -0\.5"):
        fold_batchnorm(broken)


def test_a_fold_on_the_wrong_side_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(SMALL, dim=40)  # fits on either side of the first FFN Linear
    real = module._fold_plan

    def swapped(model: nn.Module) -> list[Fold]:
        return [replace(f, side="before") if f.norm.endswith("hidden_norm") else f for f in real(model)]

    monkeypatch.setattr(module, "_fold_plan", swapped)
    model = network(config)
    assert error(model, fold_batchnorm(model), config) > 1e-3


def test_training_mode_is_refused_by_name() -> None:
    with pytest.raises(RewriteError, match="patch_norm: expected eval mode, found training mode"):
        fold_batchnorm(network(SMALL).train())
    partly = network(SMALL)
    partly.get_submodule("blocks.1.attention.norm").train()
    with pytest.raises(RewriteError, match=r"blocks\.1\.attention\.norm: expected eval mode"):
        fold_batchnorm(partly)


def test_missing_statistics_are_refused_by_name() -> None:
    model = network(SMALL)
    model.set_submodule("norm.norm", nn.BatchNorm1d(24, track_running_stats=False).double().eval())
    with pytest.raises(RewriteError, match="norm: expected running statistics"):
        fold_batchnorm(model)


def test_a_shared_weight_is_refused_by_name() -> None:
    model = network(SMALL)
    model.blocks[1].ffn.linear1.weight = model.blocks[0].ffn.linear1.weight
    with pytest.raises(RewriteError, match=r"blocks\.1\.ffn\.linear1\.weight: expected a weight of its own"):
        fold_batchnorm(model)


def test_a_norm_with_nothing_linear_beside_it_is_refused_by_name() -> None:
    model = network(SMALL)
    model.blocks[0].ffn.add_module("dropout1", nn.BatchNorm1d(17).double().eval())
    with pytest.raises(RewriteError, match=r"blocks\.0\.ffn\.dropout1: expected a linear layer beside"):
        fold_batchnorm(model)
    model = network(SMALL)
    model.blocks[0].attention.qkv = nn.Identity()
    with pytest.raises(RewriteError, match=r"blocks\.0\.attention\.norm: expected a linear layer at .*qkv"):
        fold_batchnorm(model)


def test_a_foreign_network_is_refused() -> None:
    with pytest.raises(RewriteError, match="Linear: expected a transformer, CNN or DNN"):
        fold_batchnorm(nn.Linear(3, 3))


def test_the_input_scale_cannot_pass_a_batchnorm() -> None:
    with pytest.raises(RewriteError, match="found TokenBatchNorm"):
        fold_input_scale(network(SMALL))


@pytest.mark.parametrize("model", [name for name in MODEL_NAMES if name != "dnn"])
def test_randomised_norms_are_no_identity(model: str) -> None:
    """The tests above rely on this."""
    config = ModelConfig(model=model, depth=1)
    torch.manual_seed(0)
    fresh = build(config).eval().double()
    other = copy.deepcopy(fresh)
    randomise_norms(other)
    assert error(fresh, other, config) > 1e-2
