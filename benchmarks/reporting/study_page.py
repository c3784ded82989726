"""A result as a study: page and plots."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure.results import Extras
from models.plots.figures import png
from models.plots.results import Plots, markdown


def beside(folder: Path, name: str, plots: Plots) -> Extras:
    def files(result: Mapping[str, Any]) -> dict[Path, bytes]:
        pictures = {f"{name}-{plot}.png": png(figure) for plot, figure in plots(dict(result)).items()}
        page = {f"{name}.md": markdown(dict(result), list(pictures)).encode()}
        return {folder / file: content for file, content in (page | pictures).items()}

    return files


def timing(rows: list[dict[str, Any]], count: int) -> str:
    rounds = len(rows[0]["samples_ns"])
    return f"Medians of {rounds} interleaved rounds, {count:,} images each, ONNX Runtime, all rewrites."
