"""The tables of docs/claims.md as data: published figures beside ours.

CITATION.cff names the publications. A table's first row is its header.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.reporting.plotting import look_of
from benchmarks.studies.results import (
    Key,
    Row,
    average,
    critical_depth,
    first,
    from_to,
    last,
    last_ten,
    lead,
    slowest_over_quickest,
    test_ratio,
    training_ratio,
    training_seconds,
    training_time_saved,
)
from models.networks.config import ModelName

MODELS: tuple[ModelName, ...] = ("vit", "vitbnffn", "vitbn")
PAIR: tuple[ModelName, ...] = ("vit", "vitbnffn")
RATES = (0.0005, 0.005, 0.01)
SIX_AGAINST_ONE, SIX_EACH = (6, 1, 1), (6, 6, 6)  # blocks of MODELS
PUBLISHED_SIZE, PUBLISHED_SIZE_ON_L4 = "30 epochs, 60,000 images, whole", "30 epochs, 60,000 images, L4 GPU"
TEST_IMAGES_RIGHT = "test images right, %"

# Results of the studies. Short runs have 5 epochs of 10,000 images, full runs the published size.
SHORT_RUN, SHORT_RUN_WHOLE = "learning-rates-three-seeds/learning-rates", "learning-rates/learning-rates"
FULL_RUN_AT_0_01 = "learning-rates-0.01-all-images/learning-rates"
GARMENTS = {1: "one-block", 6: "six-blocks-each"}  # depth of all networks -> folder's end
SHORT_DEPTHS = range(2, 8)
FULL_DEPTHS = {
    0.003: {depth: f"depths-0.003-depth-{depth}/depths" for depth in range(1, 8)},
    0.005: {
        **dict.fromkeys((1, 2), "depths-0.005-all-images/depths"),
        **{depth: f"depths-0.005-depth-{depth}/depths" for depth in (3, 4, 5, 6, 7)},
    },
}
ON_A_GPU = "learning-rates-h200/learning-rates"
LAYOUT = "layout/layout"
VIT_LAYOUT: Key = (LAYOUT, "vit", 6, None)
SEARCHED: list[Key] = [("optimised/optimised", model, None, None) for model in MODELS]


def blocks_of(depth: int) -> str:
    return f"{depth} block{'s' if depth > 1 else ''}"


def row_of_models(
    name: str, study: str, rate: float | None, depths: Sequence[int | None], figure: Callable[..., str]
) -> Row:
    """A figure of each of MODELS."""
    return (name, *((figure, (study, model, depth, rate)) for model, depth in zip(MODELS, depths, strict=True)))


def six_blocks_against_one(rate: float) -> list[Key]:
    """ViT of six blocks and the others of one, at the published size. ViT is the same with --last-block row and all."""
    six, one = (f"learning-rates-{rate:g}-{blocks}/learning-rates" for blocks in ("six-blocks", "one-block"))
    return [(six, "vit", 6, rate), *((one, model, 1, rate) for model in MODELS[1:])]


def six_blocks_each(rate: float) -> list[Key]:
    """All networks of six blocks, at the published size."""
    if rate == 0.01:
        return [(FULL_RUN_AT_0_01, model, 6, rate) for model in MODELS]
    others = f"learning-rates-{rate:g}-six-blocks-each/learning-rates"
    return [six_blocks_against_one(rate)[0], *((others, model, 6, rate) for model in MODELS[1:])]


def accuracies_at_rate(rate: float, *published: str) -> list[Row]:
    """The networks' accuracies at a learning rate. `published`: the row of the publication without its size."""
    return [
        (TEST_IMAGES_RIGHT, "ViT", "ViTBNFFN", "ViTBN", "size"),
        (*published, PUBLISHED_SIZE),
        ("6 blocks against 1: last epoch", *((last, key) for key in six_blocks_against_one(rate))),
        ("6 against 1: mean of the epochs", *((average, key) for key in six_blocks_against_one(rate))),
        row_of_models("6 against 1, short run: last epoch", SHORT_RUN, rate, SIX_AGAINST_ONE, last),
        ("6 blocks each: last epoch", *((last, key) for key in six_blocks_each(rate))),
        ("6 blocks each: mean of the epochs", *((average, key) for key in six_blocks_each(rate))),
    ]


def garments_study(rate: float, depth: int) -> str:
    return f"garments-learning-rates-{rate:g}-{GARMENTS[depth]}/learning-rates"


def garments(name: str, figure: Callable[..., str]) -> list[Row]:
    """A figure of the networks trained on Fashion-MNIST, at each rate and depth."""
    return [
        (name, "ViT", "ViTBNFFN", "ViTBN", "size"),
        *(
            row_of_models(
                f"rate {rate:g}, {blocks_of(depth)} each", garments_study(rate, depth), rate, [depth] * 3, figure
            )
            for depth in GARMENTS
            for rate in RATES
        ),
    ]


def time_ratios(figure: Callable[..., str], *published: Row) -> list[Row]:
    """ViT's time over each network's, at each rate. `figure`: training_ratio or test_ratio."""
    return [
        ("time of ViT over the network's", *(f"rate {rate:g}" for rate in RATES), "size"),
        *((*row, PUBLISHED_SIZE_ON_L4) for row in published),
        *(
            (
                f"{look_of(model).name}, {name}",
                *((figure, (study, "vit", 6, rate), (study, model, blocks, rate)) for rate in RATES),
            )
            for name, blocks, study in (("6 blocks each", 6, SHORT_RUN), ("6 blocks against 1", 1, SHORT_RUN_WHOLE))
            for model in MODELS[1:]
        ),
    ]


def by_depth(rate: float, published: dict[int, str]) -> list[Row]:
    """`published`: depth -> how the publication describes ViTBNFFN against ViT."""
    rows: list[Row] = [("depth", "published: ViTBNFFN is", "ViT, %", "ViTBNFFN, %", "lead, points", "size")]
    for depth, verdict in published.items():
        vit, vitbnffn = ((f"depths-{rate:g}/depths", model, depth, rate) for model in PAIR)
        rows.append((str(depth), verdict, (last, vit), (last, vitbnffn), (lead, vit, vitbnffn)))
    return rows


def by_depth_at_published_size(rate: float, published: dict[int, str]) -> list[Row]:
    """The same as `by_depth` at the published size, with a column for each depth."""
    pairs = [[(FULL_DEPTHS[rate][depth], model, depth, rate) for model in PAIR] for depth in published]
    return [
        ("blocks", *map(str, published), "size"),
        ("published: ViTBNFFN is", *published.values(), "10 epochs, 60,000 images, whole"),
        *((f"{look_of(model).name}, %", *((last, pair[i]) for pair in pairs)) for i, model in enumerate(PAIR)),
        ("lead, points", *((lead, *pair) for pair in pairs)),
    ]


def change_between_rates(model: ModelName, depth: int, published: str) -> Row:
    """The accuracy at the lower and the higher learning rate, and the difference."""
    keys = [(studies[depth], model, depth, rate) for rate, studies in FULL_DEPTHS.items()]
    return (str(depth), look_of(model).name, published, (from_to, *keys), (lead, *keys))


def ahead_from(rate: float, published: str, studies: dict[int, str]) -> Row:
    """The depth from which on ViTBNFFN is clearly ahead. `studies`: depth -> result."""
    keys = [(study, model, depth, rate) for depth, study in studies.items() for model in PAIR]
    return (f"{rate:g}", published, (critical_depth(min(studies)), *keys))


TABLES: dict[str, list[Row]] = {
    "training-time": time_ratios(
        training_ratio, ("ViTBNFFN, published", "2.7", "3.6", "2.7"), ("ViTBN, published", "2.5", "3.5", "4.3")
    ),
    "on-a-gpu": [
        ("training on an H200: time of ViT over the network's", "ViT", "ViTBNFFN", "ViTBN", "size"),
        *(
            (
                name,
                *((training_ratio, (ON_A_GPU, "vit", 6, 0.005), (ON_A_GPU, model, depth, 0.005)) for model in MODELS),
            )
            for name, depth in (("6 blocks each", 6), ("6 blocks against 1", 1))
        ),
    ],
    "layout": [
        ("time of ViT over the network's, 6 blocks each", "training", "test", "size"),
        *(
            (f"{look_of(model).name}, {name}", *((figure, VIT_LAYOUT, key) for figure in (training_ratio, test_ratio)))
            for model in MODELS[1:]
            for name, key in (
                ("BatchNorm2d as published", (LAYOUT, f"{model}-transposed", 6, None)),
                ("our layout", (LAYOUT, model, 6, None)),
            )
        ),
    ],
    "gains": [
        ("training time saved, against ViT of 6 blocks, %", "ViT", "ViTBNFFN", "ViTBN", "size"),
        ("published, at 0.005", "-", "72", "71", PUBLISHED_SIZE_ON_L4),
        *(
            (
                blocks_of(blocks),
                *(
                    (
                        training_time_saved,
                        *((SHORT_RUN, *network, rate) for rate in RATES for network in (("vit", 6), (model, blocks))),
                    )
                    for model in MODELS
                ),
            )
            for blocks in (6, 1)
        ),
    ],
    "test-time": time_ratios(
        test_ratio, ("ViTBNFFN, published", "2.6", "2.5", "2.6"), ("ViTBN, published", "2.5", "2.5", "2.7")
    ),
    "time-by-rate": [
        ("seconds to train an epoch", *(f"rate {rate:g}" for rate in RATES), "slowest over quickest", "size"),
        *(
            (
                f"{look_of(model).name}, 6 blocks",
                *((training_seconds, key) for key in keys),
                (slowest_over_quickest, *keys),
            )
            for model in MODELS
            for keys in [[(SHORT_RUN, model, 6, rate) for rate in RATES]]
        ),
    ],
    "searched": [
        (TEST_IMAGES_RIGHT, "ViT", "ViTBNFFN", "ViTBN", "size"),
        ("published, last epoch", "98.1", "97.6", "97.8", PUBLISHED_SIZE),
        ("6 blocks each: last epoch, distorted", *((last, key) for key in SEARCHED)),
        ("6 blocks each: mean of the epochs", *((average, key) for key in SEARCHED)),
    ],
    "searched-times": [
        ("time of ViT over the network's", "ViTBNFFN", "ViTBN", "size"),
        ("training: published", "3.9", "3.5", PUBLISHED_SIZE_ON_L4),
        ("training: 6 blocks each", *((training_ratio, SEARCHED[0], key) for key in SEARCHED[1:])),
        ("test: published", "2.6", "2.5", PUBLISHED_SIZE_ON_L4),
        ("test: 6 blocks each", *((test_ratio, SEARCHED[0], key) for key in SEARCHED[1:])),
    ],
    "rate-0.0005": accuracies_at_rate(0.0005, "published, last epoch", "98.2", "97.8", "97.1"),
    "rate-0.01": [
        (TEST_IMAGES_RIGHT, "ViT", "ViTBNFFN", "ViTBN", "size"),
        ("published", "unstable from 15 on", "above 97", "above 97", PUBLISHED_SIZE),
        ("6 blocks against 1: last epoch", *((last, key) for key in six_blocks_against_one(0.01))),
        ("6 against 1: last ten epochs", *((last_ten, key) for key in six_blocks_against_one(0.01))),
        ("6 blocks each: last epoch", *((last, key) for key in six_blocks_each(0.01))),
        ("6 blocks each: last ten epochs", *((last_ten, key) for key in six_blocks_each(0.01))),
        row_of_models("6 blocks each, short run", SHORT_RUN, 0.01, SIX_EACH, last),
    ],
    "depth-0.003": by_depth(
        0.003,
        {2: "equal", 3: "equal", 4: "slightly behind", 5: "slightly ahead", 6: "clearly ahead", 7: "clearly ahead"},
    ),
    "depth-0.003-whole": by_depth_at_published_size(
        0.003,
        {
            **dict.fromkeys((1, 2, 3), "equal"),
            4: "slightly behind",
            5: "slightly ahead",
            6: "clearly ahead",
            7: "clearly ahead",
        },
    ),
    "rate-0.005": accuracies_at_rate(0.005, "published", "alike", "alike", "alike"),
    "depth-0.005": by_depth(0.005, {2: "equal", 3: "slightly ahead", **dict.fromkeys((4, 5, 6, 7), "clearly ahead")}),
    "depth-0.005-whole": by_depth_at_published_size(
        0.005,
        {1: "slightly behind", 2: "equal", 3: "slightly ahead", **dict.fromkeys((4, 5, 6, 7), "clearly ahead")},
    ),
    "critical-depth": [
        ("rate", "published: clearly ahead from", "ours: 5 points ahead from", "size"),
        *(
            ahead_from(rate, published, studies)
            for rate, published in ((0.003, "depth 6"), (0.005, "depth 4"))
            for studies in (FULL_DEPTHS[rate], dict.fromkeys(SHORT_DEPTHS, f"depths-{rate:g}/depths"))
        ),
    ],
    "falls": [
        ("depth", "network", "published, %", "ours, %", "ours, points", "size"),
        *(change_between_rates(model, 2, "alike") for model in PAIR),
        change_between_rates("vit", 3, "91 to 78"),
        change_between_rates("vitbnffn", 3, "92 to 90"),
        *(change_between_rates(model, 4, "as at 3, stronger") for model in PAIR),
    ],
    "garments": garments("test garments right, last epoch, %", last),
    "garments-means": garments("test garments right, mean of the epochs, %", average),
    "sigmoids": [
        (TEST_IMAGES_RIGHT, "without BatchNorm", "with BatchNorm", "size"),
        *(
            (f"rate {rate:g}, {name}", *((figure, ("dnn/dnn", model, None, rate)) for model in ("dnn", "dnnbn")))
            for rate in (0.01, 0.1)
            for name, figure in (("first epoch", first), ("mean of the epochs", average), ("last epoch", last))
        ),
    ],
}
