"""Constants travel along the residual stream to layers that add them at no cost."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from export.rewrites.errors import DoesNotApply
from export.rewrites.fold import FoldedEmbedding
from models.layers import Attention
from models.vit import VisionTransformer

LARGEST_SHIFT = 100.0  # float32 still keeps the 1e-5 of features of 1 to 10


def carry_biases(model: nn.Module) -> nn.Module:
    """Lets every block read x + s, with the same s for every token, instead of adding biases.

    The query Wq (x + s) needs no bias if Wq s = bq. The softmax A ignores what s adds to every key. Its rows sum to
    one, so s adds the constant Wov s to the values. Without bv and bo as well:

        A (x + s) Wov' + x + s = (attention(x) + x) + s',   s' = s + Wov s - Wo bv - bo

    The first Linear of the FFN takes s' into its bias. The second makes the s that the next block wants, or loses its
    bias if any s will do. The table of positions makes the first s, the head undoes the last. A LayerNorm needs s = 0;
    its own bias then solves Wq s = bq.

    Without such an s (more query rows than features), only the query bias stays. Raises DoesNotApply if no bias can go.
    """
    if not isinstance(model, VisionTransformer):
        raise DoesNotApply(f"{type(model).__name__}: there is no attention")
    carried = copy.deepcopy(model)
    blocks = list(carried.blocks)
    shift = _wanted(blocks[0])
    if shift is None:
        shift = carried.head.weight.new_zeros(carried.config.dim)
    late = carried.config.class_attention is not None
    _shift_rows(carried.embedding, shift, slice(1 if late else 0, None))
    for i, (block, following) in enumerate(zip(blocks, [*blocks[1:], None], strict=True)):
        if late and following is None:
            _shift_rows(carried.embedding, shift, slice(1))
        shift = _carry_through_attention(block, shift, tokens=carried.config.tokens(i))
        if following is not None:
            wanted = _wanted(following)
        else:
            wanted = None if isinstance(carried.norm, nn.Identity) else torch.zeros_like(shift)
        shift = _carry_through_ffn(block, shift, wanted)
    carried.head.bias.data -= carried.head.weight.data @ shift
    if carried.state_dict().keys() == model.state_dict().keys():
        raise DoesNotApply("biases: expected a bias that costs time, found none")
    return carried


class QueryBiasAttention(Attention):
    def __init__(self, attention: Attention, query_bias: Tensor) -> None:
        nn.Module.__init__(self)
        self.training = attention.training  # as its dropout
        self.heads, self.dim_head, self.rows = attention.heads, attention.dim_head, attention.rows
        self.scale, self.fused = attention.scale, attention.fused
        self.norm, self.qkv, self.out = attention.norm, attention.qkv, attention.out
        self.attention_dropout, self.out_dropout = attention.attention_dropout, attention.out_dropout
        self.query_bias: Tensor
        self.register_buffer("query_bias", query_bias)  # (H*E,)
        self.qkv.register_parameter("bias", None)

    def project(self, x: Tensor) -> list[Tensor]:
        q, k, v = super().project(x)
        return [q + self.query_bias, k, v]  # each (B, N, H*E)


def _wanted(block: nn.Module) -> Tensor | None:
    """The shift (D,) that the block wants at its input; None if any will do."""
    attention = block.get_submodule("attention")
    if not isinstance(attention.norm, nn.Identity) or not _movable(block):
        return torch.zeros_like(block.get_parameter("ffn.linear2.bias").data)
    return _shift_instead_of_bias(attention)


def _movable(block: nn.Module) -> bool:
    """Whether attention's constant can move on to the FFN or into a bias."""
    out = block.get_submodule("attention").out
    return isinstance(out, nn.Linear) or isinstance(block.get_submodule("ffn").norm, nn.Identity)


def _carry_through_attention(block: nn.Module, shift: Tensor, tokens: int) -> Tensor:
    """Shift at its input -> shift after the residual."""
    if not _movable(block):
        return shift
    attention = block.get_submodule("attention")
    inside, bias, instead = shift, None, _shift_instead_of_bias(attention)
    if instead is not None and isinstance(attention.norm, nn.LayerNorm):
        inside = instead
        attention.norm = _with_bias(attention.norm, instead)
    elif (query := _query(attention)) is not None and not (instead is not None and instead.equal(shift)):
        weight, bias = query
        bias = bias - weight @ inside
    constant = _of_equal_tokens(attention, torch.zeros_like(shift), tokens)  # Wo bv + bo
    after = shift + _of_equal_tokens(attention, inside, tokens) - 2 * constant
    block.attention = _without_biases(attention, bias)
    if not isinstance(block.get_submodule("ffn").norm, nn.Identity):
        block.get_submodule("attention.out").register_parameter("bias", nn.Parameter(-after))
        after = torch.zeros_like(after)
    return after


def _carry_through_ffn(block: nn.Module, shift: Tensor, wanted: Tensor | None) -> Tensor:
    first, second = block.get_submodule("ffn.linear1"), block.get_submodule("ffn.linear2")
    first.get_parameter("bias").data -= first.get_parameter("weight").data @ shift  # shift is 0 if a norm precedes
    bias = second.get_parameter("bias").data
    if wanted is None:
        second.register_parameter("bias", None)
        return shift - bias
    bias += wanted - shift
    return wanted


def _query(attention: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Weight (rows, D) and bias (rows,) of the queries."""
    layer = attention.qkv if isinstance(attention, Attention) else attention.query
    if not isinstance(layer, nn.Linear) or layer.bias is None:
        return None
    parts = 3 if isinstance(attention, Attention) else 1
    return layer.weight.data.chunk(parts)[0], layer.bias.data.chunk(parts)[0]


def _shift_instead_of_bias(attention: nn.Module) -> Tensor | None:
    """s (D,) with Wq s = bq; None without bq or such an s, or if s is too large for float32."""
    if (query := _query(attention)) is None:
        return None
    weight, bias = query
    shift = torch.linalg.lstsq(weight, bias[:, None], driver="gelsd").solution[:, 0]
    rounding = 1e4 * torch.finfo(bias.dtype).eps * max(1.0, float(bias.abs().max()))
    exact = float((weight @ shift - bias).abs().max()) <= rounding
    return shift if exact and float(shift.abs().max()) <= LARGEST_SHIFT else None


def _of_equal_tokens(attention: nn.Module, token: Tensor, tokens: int) -> Tensor:
    """Output (D,) if every normalised token is `token`: scores then have no effect."""
    bare = copy.deepcopy(attention).eval()
    bare.norm = nn.Identity()
    with torch.no_grad():
        y: Tensor = bare(token.expand(1, tokens, -1))[0, 0]
    return y


def _without_biases(attention: nn.Module, query_bias: Tensor | None) -> nn.Module:
    if isinstance(attention.out, nn.Linear):
        attention.out.register_parameter("bias", None)
    if isinstance(attention, Attention):
        if query_bias is not None:
            return QueryBiasAttention(attention, query_bias)
        attention.qkv.register_parameter("bias", None)
        return attention
    for name, layer in attention.named_children():
        if name in ("query", "value") and isinstance(layer, nn.Linear):
            kept = query_bias if name == "query" else None
            layer.register_parameter("bias", None if kept is None else nn.Parameter(kept))
    return attention


def _with_bias(norm: nn.LayerNorm, bias: Tensor) -> nn.LayerNorm:
    shifted = nn.LayerNorm(norm.normalized_shape, norm.eps, dtype=bias.dtype)
    if norm.elementwise_affine:
        shifted.load_state_dict(norm.state_dict())
    shifted.bias.data += bias
    return shifted


def _shift_rows(embedding: nn.Module, shift: Tensor, rows: slice) -> None:
    table: Tensor = getattr(embedding, "rows" if isinstance(embedding, FoldedEmbedding) else "pos_embedding")
    table.data[:, rows] += shift
