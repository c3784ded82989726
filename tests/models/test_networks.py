import subprocess
import sys
from pathlib import Path

import pytest
import torch
from random_networks import network
from torch import nn

from models.networks.cnn import CNN
from models.networks.config import ConfigError, ModelConfig
from models.networks.foldable_norms import TokenBatchNorm
from models.networks.layers import Attention, TokenEmbedding, sinusoidal_positions
from models.networks.registry import build, randomise_norms
from models.networks.vit import VisionTransformer

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "image_size": (8, 12),
    "patch_size": (4, 3),
    "channels": 2,
    "num_classes": 5,
    "dim": 16,
    "depth": 2,
    "heads": 2,
    "dim_head": 8,
    "mlp_dim": 24,
    "labels": tuple("01234"),
}


def transformer(model, **fields):
    return VisionTransformer(ModelConfig(model=model, **SMALL | fields))


def image_batch(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def attention(**arguments):
    torch.manual_seed(0)
    fields = {"dim": 16, "heads": 2, "dim_head": 8, "qkv_bias": True} | arguments
    return Attention(ModelConfig(**fields), lambda dim: nn.Identity()).eval()


def norms_of(model):
    modules = dict(model.named_modules())
    batch = {name: module.num_features for name, module in modules.items() if isinstance(module, nn.BatchNorm1d)}
    layer = {name: module.normalized_shape[0] for name, module in modules.items() if isinstance(module, nn.LayerNorm)}
    return batch, layer


def test_cnn_of_a_picture_too_small():
    with pytest.raises(ConfigError, match=r"image_size: expected at least 20 .* found \(28, 19\)"):
        ModelConfig(model="cnn", image_size=(28, 19))
    CNN(ModelConfig(model="cnn", image_size=(20, 20)))


def test_the_width_of_a_cnn():
    shapes = {name: tuple(weight.shape[:2]) for name, weight in CNN(ModelConfig(model="cnn", dim=2)).named_parameters()}
    assert (shapes["conv1.weight"], shapes["conv3.weight"], shapes["fc1.weight"]) == ((1, 1), (2, 1), (8, 18))
    with pytest.raises(ConfigError, match="dim: expected at least 2 for the CNN, found 1"):
        ModelConfig(model="cnn", dim=1)


@pytest.mark.parametrize("model", ["dnn", "dnnbn"])
def test_logits_of_linear_layers_are_the_formula(model):
    built = network(ModelConfig(model=model)).double()
    x = image_batch(4, 1, 28, 28).double()
    expected = x.reshape(4, 784)
    for number in (1, 2, 3):
        expected = built.get_submodule(f"linear{number}")(expected)
        if model == "dnnbn":
            norm = built.get_submodule(f"norm{number}")
            centred = (expected - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
            expected = norm.weight * centred + norm.bias
        expected = 1 / (1 + torch.exp(-expected))
        assert expected.shape == (4, 100)
    torch.testing.assert_close(built(x), built.head(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_pool_decides_what_the_head_reads(pool):
    model = transformer("vit", pool=pool).eval()
    seen = {}
    model.norm.register_forward_hook(lambda module, inputs, output: seen.update(tokens=output))
    model.head.register_forward_hook(lambda module, inputs, output: seen.update(pooled=inputs[0]))
    assert model(image_batch(2, 2, 8, 12)).shape == (2, 5)
    expected = seen["tokens"][:, 0] if pool == "cls" else seen["tokens"].mean(1)
    torch.testing.assert_close(seen["pooled"], expected, rtol=0, atol=0)


def test_patches_are_flattened_channel_row_column():
    model = transformer("vit").eval()
    seen = {}
    model.patch_norm.register_forward_hook(lambda module, inputs, output: seen.update(patches=inputs[0]))
    image = image_batch(1, 2, 8, 12)
    model(image)
    corners = [(row, column) for row in (0, 4) for column in (0, 3, 6, 9)]
    expected = [image[0, :, r : r + 4, c : c + 3].flatten() for r, c in corners]
    torch.testing.assert_close(seen["patches"][0], torch.stack(expected), rtol=0, atol=0)


def test_which_norms_a_network_has():
    batch, layer = norms_of(transformer("vit"))
    assert (batch, len(layer)) == ({}, 2 * SMALL["depth"] + 3)
    batch, layer = norms_of(transformer("vitbnffn"))
    assert batch == {f"blocks.{i}.ffn.hidden_norm.norm": SMALL["mlp_dim"] for i in range(SMALL["depth"])}
    assert set(layer) == {"patch_norm", "embedding_norm", "norm", "blocks.0.attention.norm", "blocks.1.attention.norm"}
    batch, layer = norms_of(transformer("vitbn"))
    assert layer == {}
    assert len(batch) == 2 * SMALL["depth"] + 3
    assert {name: width for name, width in batch.items() if "blocks" not in name} == {
        "patch_norm.norm": 24,
        "embedding_norm.norm": 16,
        "norm.norm": 16,
    }
    for model in ("vitbnffn", "vitbn"):
        assert set(norms_of(transformer(model, bn_features="one"))[0].values()) == {1}


@pytest.mark.parametrize("model", ["vitbnffn", "vitbn"])
def test_hidden_norm_stands_between_the_linear_and_gelu(model):
    ffn = transformer(model).eval().blocks[0].ffn
    randomise_norms(ffn)
    x = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(0))
    expected = ffn.linear2(nn.functional.gelu(ffn.hidden_norm(ffn.linear1(x))))
    torch.testing.assert_close(ffn(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("training", [True, False])
def test_token_batch_norm_is_batch_norm_over_channels(training):
    ours, theirs = TokenBatchNorm(6).double(), nn.BatchNorm1d(6).double()
    randomise_norms(ours)
    theirs.load_state_dict(ours.norm.state_dict())
    x = torch.randn(4, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours.train(training)
    theirs.train(training)
    torch.testing.assert_close(ours(x), theirs(x.transpose(1, 2)).transpose(1, 2), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.norm.state_dict(), theirs.state_dict(), rtol=1e-12, atol=1e-12)


def test_token_batch_norm_over_one_feature_is_the_formula():
    norm = TokenBatchNorm(1).double()
    randomise_norms(norm)
    x = torch.randn(4, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gamma, beta = norm.norm.weight.item(), norm.norm.bias.item()
    mean, variance = norm.norm.running_mean.item(), norm.norm.running_var.item()
    expected = gamma * (x - mean) / (variance + 1e-5) ** 0.5 + beta
    torch.testing.assert_close(norm.eval()(x), expected, rtol=1e-12, atol=1e-12)
    expected = gamma * (x - x.mean()) / (x.var(correction=0) + 1e-5) ** 0.5 + beta
    torch.testing.assert_close(norm.train()(x), expected, rtol=1e-12, atol=1e-12)


def test_sinusoidal_positions_are_the_formula():
    angles = torch.tensor([[n * 10000 ** (-k / 4) for k in (1, 2, 3, 4)] for n in range(5)], dtype=torch.float64)
    expected = torch.cat((angles.sin(), angles.cos()), dim=1).float()[None]
    torch.testing.assert_close(sinusoidal_positions(5, 8), expected, rtol=0, atol=1e-7)


def test_embedding_puts_the_cls_token_first_and_adds_positions():
    embedding = TokenEmbedding(ModelConfig(image_size=(7, 21), dim=8, pos_emb="pe1d"))
    tokens = embedding(torch.zeros(2, 3, 8)) - sinusoidal_positions(4, 8)
    torch.testing.assert_close(tokens[:, 0], embedding.cls_token[0].expand(2, -1), rtol=0, atol=1e-6)
    torch.testing.assert_close(tokens[:, 1:], torch.zeros(2, 3, 8), rtol=0, atol=0)


@pytest.mark.parametrize(("pos_emb", "learned"), [("learn", True), ("pe1d", False)])
def test_positions_are_a_parameter_or_a_buffer(pos_emb, learned):
    model = transformer("vit", pos_emb=pos_emb)
    assert ("embedding.pos_embedding" in dict(model.named_parameters())) == learned
    assert ("embedding.pos_embedding" in dict(model.named_buffers())) == (not learned)


def test_attention_is_pytorchs():
    ours, theirs = attention(), nn.MultiheadAttention(16, 2, batch_first=True).eval()
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = ours.qkv.weight.data, ours.qkv.bias.data
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    x = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0], rtol=1e-5, atol=1e-6)


def test_attention_dropout_acts_in_training_alone():
    layer = attention(dropout=0.5, heads=1, dim_head=16)
    x = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(1))
    assert torch.equal(layer(x), layer(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))


def test_blocks_before_the_last_do_not_see_the_token_of_class_attention():
    model, seen = network(ModelConfig(depth=2, dim=16, heads=4, dim_head=16, mlp_dim=24, class_attention=(3, 5))), []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda block, inputs: seen.append(tuple(inputs[0].shape)))
    model(image_batch(3, 1, 28, 28))
    assert seen == [(3, 16, 16), (3, 17, 16)]
    assert [block.attention.heads for block in model.blocks] == [4, 3]


def test_modules_need_no_torch():
    program = "import sys, benchmarks.studies.study; assert not {'torch', 'matplotlib'} & set(sys.modules)\n"
    program += "import models.networks.config, models.data, models.train; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize("model", ["vit", "vitbn"])
def test_a_standardised_picture_has_no_contrast(model):
    torch.manual_seed(0)
    standardised = build(ModelConfig(model=model, depth=1, standardise=True)).eval()
    x = torch.rand(4, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(standardised(0.5 * x + 0.2), standardised(x), rtol=0, atol=1e-3)
        assert standardised(torch.zeros_like(x)).isfinite().all(), "without ink there is no spread"
        plain = build(ModelConfig(model="vitbn", depth=1)).eval()
        assert (plain(0.5 * x + 0.2) - plain(x)).abs().max() > 0.01
