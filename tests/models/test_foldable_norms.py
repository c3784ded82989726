import numpy as np
import pytest
import torch
from torch import nn

from models.networks.config import ModelConfig
from models.networks.foldable_norms import (
    DynamicFeatureNorm,
    ProgressiveRepBN,
    RepBN,
    TokenBatchNorm,
    TokenNorm,
    UnifiedNorm,
    anneal,
)
from models.networks.per_token_norms import DynamicTokenNorm, TokenMinMax, TokenZScore
from models.networks.registry import build, randomise_norms

EPS = 1e-5
AFFINE = [TokenBatchNorm, RepBN, UnifiedNorm, DynamicFeatureNorm, lambda features: ProgressiveRepBN(6, features)]


def tokens(seed=0, images=4, count=5, dim=6):
    """float64 (B, N, D); mean and spread differ by feature."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(images, count, dim, dtype=torch.float64, generator=generator)
    return x * torch.linspace(0.5, 3, dim) + torch.linspace(-2, 2, dim)


def randomised(norm):
    norm = norm.double()
    randomise_norms(norm)
    return norm


def assert_close(found, expected):
    torch.testing.assert_close(found.detach(), torch.as_tensor(expected), rtol=1e-11, atol=1e-11)


def numbers(norm):
    return {name: tensor.detach().numpy().copy() for name, tensor in norm.state_dict().items()}


def batch_norm(x, n, prefix="norm."):
    scale = n[f"{prefix}weight"] / np.sqrt(n[f"{prefix}running_var"] + EPS)
    return (x - n[f"{prefix}running_mean"]) * scale + n[f"{prefix}bias"]


def test_repbn():
    norm, x = randomised(RepBN(6)), tokens()
    n, rows = numbers(norm), x.numpy().reshape(-1, 6)
    assert_close(norm.eval()(x), batch_norm(x.numpy(), n) + n["skip"] * x.numpy())
    z_score = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + EPS)
    expected = n["norm.weight"] * z_score + n["norm.bias"] + n["skip"] * rows
    assert_close(norm.train()(x), expected.reshape(x.shape))


@pytest.mark.parametrize("share", [1.0, 0.25, 0.0])
def test_progressive_repbn_is_the_mixture(share):
    norm, x = randomised(ProgressiveRepBN(6, 6)), tokens()
    norm.layer_norm_share = share
    for module in (norm.eval(), norm.train()):
        batch = module.batch_norm(x)
        assert_close(module(x), share * norm.layer_norm(x) + (1 - share) * batch)


def test_the_share_of_layernorm_falls_in_a_line_over_four_fifths():
    model = build(ModelConfig(model="vit-prepbn", depth=1, dim=16, heads=2, dim_head=8, mlp_dim=8))
    norms = [module for module in model.modules() if isinstance(module, ProgressiveRepBN)]
    assert len(norms) == 2 + 2 + 1
    for progress, share in ((0.0, 1.0), (0.2, 0.75), (0.4, 0.5), (0.8, 0.0), (0.9, 0.0)):
        anneal(model, progress)
        assert {norm.layer_norm_share for norm in norms} == {share}


@pytest.mark.parametrize("model", ["vit-repbn", "vit-prepbn"])
def test_the_factor_starts_at_0_and_is_trained(model):
    network = build(ModelConfig(model=model, depth=1, dim=16, heads=2, dim_head=8, mlp_dim=8))
    skips = [module.skip for module in network.modules() if isinstance(module, RepBN)]
    assert {skip.item() for skip in skips} == {0.0}
    assert all(skip.requires_grad for skip in skips)


def test_layernorm_is_left_out_where_nothing_is_left_of_it():
    norm, x = randomised(ProgressiveRepBN(6, 6)), tokens()
    norm.layer_norm.register_forward_hook(lambda *_: pytest.fail("computed"))
    norm(x)
    with pytest.raises(pytest.fail.Exception):
        norm.layer_norm(x)


def test_unified_norm_in_eval_mode():
    norm, x = randomised(UnifiedNorm(6)), tokens()
    n = numbers(norm)
    expected = n["weight"] * x.numpy() / np.sqrt(n["running_square"] + EPS) + n["bias"]
    assert_close(norm.eval()(x), expected)


def test_unified_norm_trains_with_the_geometric_mean_of_four_batches():
    norm = UnifiedNorm(6).double().train()
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    squares, running = [], None
    for seed in range(7):
        x = (1 + seed) * tokens(seed)
        found = norm(x)
        squares = [*squares, x.numpy().reshape(-1, 6).__pow__(2).mean(0)][-4:]
        square = np.exp(np.mean(np.log(squares), axis=0))
        assert_close(found, norm.weight.detach().numpy() * x.numpy() / np.sqrt(square + EPS))
        running = square if running is None else 0.9 * running + 0.1 * square
        assert_close(norm.running_square, running)
    assert norm.num_batches_tracked == 7


def test_unified_norm_sends_gradients_through_the_newest_batch():
    norm = UnifiedNorm(6).double()
    norm(tokens(1))
    norm.log_squares.fill_(0.3)

    def fresh(x):
        norm.num_batches_tracked.fill_(3)
        norm.log_squares.fill_(0.3)
        return norm(x)

    assert torch.autograd.gradcheck(fresh, tokens(images=2, count=2).requires_grad_())


def test_dynamic_feature_norm():
    norm, x = randomised(DynamicFeatureNorm(6)), tokens()
    n, rows = numbers(norm), x.numpy().reshape(-1, 6)
    shares = np.exp(n["choice"]) / np.exp(n["choice"]).sum()
    assert np.ptp(shares) > 0.01

    def mixed(z_score, low, high):
        by_branch = (z_score, (rows - low) / (high - low + EPS), rows)
        total = sum(share * branch for share, branch in zip(shares, by_branch, strict=True))
        return (n["weight"] * total + n["bias"]).reshape(x.shape)

    running = (rows - n["z_score.running_mean"]) / np.sqrt(n["z_score.running_var"] + EPS)
    assert_close(norm.eval()(x), mixed(running, n["running_min"], n["running_max"]))
    own = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + EPS)
    assert_close(norm.train()(x), mixed(own, rows.min(0), rows.max(0)))
    assert_close(norm.running_min, 0.9 * n["running_min"] + 0.1 * rows.min(0))
    assert_close(norm.running_max, 0.9 * n["running_max"] + 0.1 * rows.max(0))


def test_dynamic_feature_norm_takes_the_bounds_of_its_first_batch():
    norm, x = DynamicFeatureNorm(6).double(), tokens()
    norm(x)
    assert_close(norm.running_min, x.amin(dim=(0, 1)))
    assert_close(norm.running_max, x.amax(dim=(0, 1)))


@pytest.mark.parametrize("training", [True, False])
def test_norms_of_a_token(training):
    for norm in (randomised(TokenMinMax(6)).train(training), randomised(TokenZScore(6)).train(training)):
        n, x = numbers(norm), tokens().numpy()
        if isinstance(norm, TokenMinMax):
            low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
            normed = (x - low) / (high - low + EPS)
        else:
            normed = (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True, ddof=1) + EPS)
        assert_close(norm(tokens()), n["weight"] * normed + n["bias"])


@pytest.mark.parametrize("with_cls", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_dynamic_token_norm(with_cls, training):
    heads, grid, dim = 2, (2, 3), 6
    norm = randomised(DynamicTokenNorm(dim, heads, grid)).train(training)
    n, x = numbers(norm), tokens(count=6 + with_cls)
    places = [None] * with_cls + [(i // 3, i % 3) for i in range(6)]
    expected = np.empty(x.shape)
    mean_shares, var_shares = (1 / (1 + np.exp(-n[name])) for name in ("mean_share", "var_share"))
    by_head = x.numpy().reshape(*x.shape[:2], heads, 3)
    x_normed = (by_head / np.sqrt((by_head**2).mean(-1, keepdims=True) + EPS)).reshape(x.shape)
    for image, i, head in np.ndindex(len(x), len(places), heads):
        own, part = x_normed[image, i], x_normed[image, :, 3 * head : 3 * head + 3]
        scores = np.full(len(places), 0.0 if places[i] is None else -np.inf)
        for j, place in enumerate(places):
            if places[i] is not None and place is not None:
                dy, dx = place[0] - places[i][0], place[1] - places[i][1]
                scores[j] = n["gaze"][head] @ [dx, dy, dx**2 + dy**2]
        weights = np.exp(scores) / np.exp(scores).sum()
        near_mean = weights @ part
        near_var = weights @ part**2 - near_mean**2
        mean = mean_shares[head] * own.mean() + (1 - mean_shares[head]) * near_mean
        var = var_shares[head] * own.var() + (1 - var_shares[head]) * near_var
        expected[image, i, 3 * head : 3 * head + 3] = (part[i] - mean) / np.sqrt(var + EPS)
    assert_close(norm(x), n["weight"] * expected + n["bias"])


def test_each_head_first_looks_at_one_neighbour():
    norm = DynamicTokenNorm(18, 9, (3, 3))
    with torch.no_grad():
        looks_at = norm._weights(with_cls=False)[:, 4].argmax(dim=-1)  # the middle patch
    assert looks_at.tolist() == list(range(9))


def test_an_even_number_of_heads_a_side_first_looks_between_patches():
    norm = DynamicTokenNorm(16, 4, (3, 3))
    with torch.no_grad():
        weights = norm._weights(with_cls=False)[0, 4]
    nearest = weights[[0, 1, 3, 4]]  # around the upper left corner
    torch.testing.assert_close(nearest, nearest[:1].expand(4))
    assert nearest.sum() > 0.5


@pytest.mark.parametrize("make", AFFINE)
@pytest.mark.parametrize("features", [6, 1])
def test_the_norm_is_an_affine_map_of_each_feature_in_eval_mode(make, features):
    norm, x = randomised(make(features)).eval(), tokens()
    norm.check_affine()
    shift = norm(torch.zeros_like(x[:1, :1]))
    scale = norm(torch.ones_like(x[:1, :1])) - shift
    assert len(scale.unique()) == len(shift.unique()) == features
    assert_close(norm(x), scale * x + shift)
    assert (norm(x) - x).abs().max() > 0.1


@pytest.mark.parametrize("make", [*AFFINE[1:], TokenMinMax, TokenZScore, lambda dim: DynamicTokenNorm(dim, 2, (2, 2))])
def test_half_precision_stays_half_and_is_computed_in_float32(make):
    norm, x = make(6).train(), tokens(images=64).float()
    with torch.autocast("cpu", torch.bfloat16):
        low = norm(x.bfloat16())
    assert low.dtype == torch.bfloat16
    assert all(p.grad is None and p.dtype == torch.float32 for p in norm.parameters())
    assert (low.float() - make(6).train()(x)).abs().max() < 0.1


def test_every_norm_of_the_presets_is_one_of_ours_or_layernorm():
    for model in ("vit-repbn", "vit-prepbn", "vit-un", "vit-dfn", "vit-dtn", "vit-minmax", "vit-zscore"):
        network = build(ModelConfig(model=model, depth=2, dim=16, heads=2, dim_head=8, mlp_dim=8))
        norms = [module for module in network.modules() if isinstance(module, TokenNorm)]
        inner = sum(isinstance(norm, ProgressiveRepBN) for norm in norms)  # a RepBN inside of each
        assert len(norms) - inner == 2 + 2 * 2 + 1
