"""What a pass reports beside the model."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.errors import Refusal, Site


@dataclass
class RewriteResult(ir.passes.PassResult):
    sites: tuple[Site, ...] = ()
    refusals: tuple[Refusal, ...] = ()
