import pytest
from networks import SMALL, error, network
from torch import Tensor, nn

from export.rewrites import absorb
from export.rewrites.absorb import absorb_attention
from export.rewrites.fold import fold_batchnorm
from export.rewrites.prune import cls_only
from models.layers import absorbed_output, absorbed_query


def without_scale(query: Tensor, key: Tensor, heads: int) -> Tensor:
    return absorbed_query(query, key, heads) * (len(key) / heads) ** 0.5


def transposed(query: Tensor, key: Tensor, heads: int) -> Tensor:
    absorbed = absorbed_query(query, key, heads)
    if absorbed.shape[1] == 1:
        return absorbed
    return absorbed.unflatten(0, (heads, -1)).transpose(1, 2).flatten(0, 1).contiguous()


def without_bias(query: Tensor, key: Tensor, heads: int) -> Tensor:
    absorbed = absorbed_query(query, key, heads)
    return absorbed * 0 if absorbed.shape[1] == 1 else absorbed


def heads_reversed(query: Tensor, key: Tensor, heads: int) -> Tensor:
    return absorbed_query(query, key, heads).unflatten(0, (heads, -1)).flip(0).flatten(0, 1)


Output = tuple[Tensor, Tensor]


def output_without_value_bias(out: nn.Module, value: Tensor, bias: Tensor | None, heads: int) -> Output:
    return absorbed_output(out, value, None, heads)


def output_heads_reversed(out: nn.Module, value: Tensor, bias: Tensor | None, heads: int) -> Output:
    weight, constant = absorbed_output(out, value, bias, heads)
    return weight.unflatten(1, (heads, -1)).flip(1).flatten(1), constant


QUERIES = [without_scale, transposed, without_bias, heads_reversed]
OUTPUTS = [output_without_value_bias, output_heads_reversed]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [*(("absorbed_query", wrong) for wrong in QUERIES), *(("absorbed_output", wrong) for wrong in OUTPUTS)],
    ids=lambda value: getattr(value, "__name__", value),
)
@pytest.mark.parametrize("last", [False, True])
def test_a_wrong_absorbed_query_or_output_is_seen(
    name: str, wrong: object, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absorb, name, wrong)
    folded = fold_batchnorm(network(SMALL))
    if last:
        folded = cls_only(folded)
    assert error(folded, absorb_attention(folded), SMALL) > 1e-6


def test_a_wrong_row_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.layers.first_rows", lambda x, rows: x if rows is None else x[:, 1:2])
    assert error(network(SMALL), cls_only(network(SMALL)), SMALL) > 1e-6
