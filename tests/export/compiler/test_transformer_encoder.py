"""nn.TransformerEncoder: tokens or texts first, norms before or behind, a mask that is true for hidden tokens."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import onnx
import pytest
import torch
from foreign_networks import DIM, VOCABULARY, draw, model, proved, traced, written
from torch import Tensor, nn

from export.compiler.analyses.projections import Channels
from export.compiler.errors import ForeignError
from export.compiler.pipeline import rewrite

pytestmark = pytest.mark.slow

MASK = "attention_mask"
FORMS = [(True, True), (False, False)]  # texts first, norms first


class FirstToken(nn.Module):
    def __init__(self, texts_first: bool, norm_first: bool) -> None:
        super().__init__()
        self.texts_first, self.words = texts_first, nn.Embedding(VOCABULARY, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 2, 2 * DIM, batch_first=texts_first, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        draw(self)

    def forward(self, input_ids: Tensor, hidden: Tensor) -> Tensor:
        words = self.words(input_ids)
        x = self.encoder(words if self.texts_first else words.transpose(0, 1), src_key_padding_mask=hidden)
        first: Tensor = x[:, 0] if self.texts_first else x[0]
        return first


@cache
def exported(texts_first: bool, norm_first: bool) -> onnx.ModelProto:
    ids, hidden = torch.randint(0, VOCABULARY, (2, 6)), torch.zeros(2, 6, dtype=torch.bool)
    axes = [{0: "batch", 1: "seq"}] * 2
    return traced(FirstToken(texts_first, norm_first), (ids, hidden), axes, ["input_ids", MASK], ["y"], "new", 20)


@pytest.mark.parametrize("form", FORMS)
def test_the_first_token_absorbs_keys_and_values(
    form: tuple[bool, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = exported(*form)
    rewritten = rewrite(model(original), sizes={"batch": 1, "seq": 24})
    assert "absorb-queries" in rewritten.applied
    assert proved(model(original), rewritten.model).error < 1e-12
    if not form[0]:
        monkeypatch.setattr(Channels, "three_axes", lambda self, nodes: self.tokens)
        with pytest.raises(ForeignError):
            written(original, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_hidden_tokens_are_not_computed(form: tuple[bool, bool], tmp_path: Path) -> None:
    made = written(exported(*form), tmp_path, packed=MASK)
    assert made.rewritten.steps[-1].sites
    assert made.proofs[0].error < 1e-12
