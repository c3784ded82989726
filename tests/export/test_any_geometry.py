import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import FOLD, answer, network, pixels, rewritten_in_turn

from export.rewrites.pipeline import ALL
from models.config import TRANSFORMER_NAMES, ModelConfig
from models.macs import macs_per_image


@st.composite
def geometries(draw: st.DrawFn) -> ModelConfig:
    patch = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    grid = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    heads = draw(st.integers(1, 4))
    dim = 2 * draw(st.integers(1, 12))
    classes = draw(st.integers(1, 12))
    model = draw(st.sampled_from(TRANSFORMER_NAMES))
    pool = draw(st.sampled_from(["cls", "mean"]))
    late = st.tuples(st.integers(1, 5), st.sampled_from([1, 4, dim])) if pool == "cls" and model != "vit-dtn" else None
    return ModelConfig(
        model=model,
        image_size=(patch[0] * grid[0], patch[1] * grid[1]),
        patch_size=patch,
        channels=draw(st.integers(1, 3)),
        num_classes=classes,
        dim=dim,
        depth=draw(st.sampled_from([1, 1, 2, 3, 12])),
        heads=heads,
        dim_head=draw(st.sampled_from([dim, 4, 9, 32])),
        mlp_dim=draw(st.integers(1, 40)),
        pool=pool,
        pos_emb=draw(st.sampled_from(["learn", "pe1d"])),
        bn_features=draw(st.sampled_from(["dim", "one"])),
        qkv_bias=draw(st.booleans()),
        standardise=draw(st.booleans()),
        labels=tuple(map(str, range(classes))),
        class_attention=None if late is None else draw(st.none() | late),
    )


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(st.data(), st.integers(0, 1000))
def test_any_geometry_after_each_rewrite_and_after_all(data: st.DataObject, seed: int) -> None:
    config = data.draw(geometries())
    model = network(config, seed)
    x = pixels(config)
    bound = 1e-10 * max(1.0, float(answer(model, x / 255).abs().max()))
    rewritten, scaled = rewritten_in_turn(model, x, ALL, bound)
    assert scaled == (config.model in FOLD or config.standardise)
    assert macs_per_image(rewritten) <= macs_per_image(model)
