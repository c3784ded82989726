"""A training's result as one HTML file: curves, confusion matrix, the most mistaken pictures.

In: `report.Result`. Out: the page's text. Curves are SVG and pictures PNG inside it; it loads no other file.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from common.plurals import counted
from models.evaluation.report import Mistake, Result
from models.networks.config import TRANSFORMER_NAMES

MOST_CLASSES = 60  # rows of the matrix
SHORT = 3  # characters of a label that fit over a column
DOTS = 30  # most epochs with a dot for each
SHOWN_SIDE = 112  # pixels of a picture's longer side on the page, at least
WIDTH, HEIGHT = 460, 240  # of a curve
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 14, 34  # margins of a curve

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff; max-width: 1000px; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { margin: .3rem 0; }
.quiet { color: #59636e; }
.result { font-size: 1.2rem; }
.curves, .mistakes { display: flex; flex-wrap: wrap; gap: 1rem; }
svg { max-width: 100%; height: auto; }
svg text { font-size: 12px; fill: #59636e; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
td { border: 1px solid #e4e7eb; text-align: right; padding: .15rem .35rem; min-width: 1.3rem; }
tbody th { text-align: right; font-weight: normal; padding-right: .5rem; white-space: nowrap; }
thead th { font-weight: normal; vertical-align: bottom; padding: .3rem .15rem; }
.upright { writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; margin: 0 auto; max-height: 12rem;
  overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.small { font-size: 11px; line-height: 1.15; }
.small td { padding: .05rem .1rem; min-width: .9rem; }
td.sum, .small td.sum, thead th.sum { border: 0; padding: 0 .6rem 0 .1rem; white-space: nowrap; }
figure { margin: 0; width: 172px; }
figure div { min-height: 114px; }
img { display: block; border: 1px solid #d1d9e0; max-width: 170px; height: auto; }
img.enlarged { image-rendering: pixelated; }
figcaption { font-size: 13px; overflow-wrap: anywhere; line-height: 1.35; margin-top: .3rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: 0; }
dt { color: #59636e; }
dd { margin: 0; overflow-wrap: anywhere; }
"""


def page(result: Result) -> str:
    title = f"{result.about['dataset']}: {result.about['config']['model']}"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *_verdict(result),
            "<h2>Training</h2>",
            *_curves(result),
            "<h2>Answers</h2>",
            *_matrix(result),
            "<h2>Most mistaken pictures</h2>",
            *_mistakes(result),
            "<h2>How it was trained</h2>",
            *_training(result),
            "</body></html>\n",
        ]
    )


def _verdict(result: Result) -> list[str]:
    low, high = (f"{100 * bound:.1f}" for bound in result.interval)
    share = f"{_percent(result.right, result.pictures)} right ({low} to {high}, 95 % interval)"
    told = f"<p class=result>Test part: {counted(result.pictures, 'picture', ',')}, {share}.</p>"
    return [told, f"<p class=quiet>Epoch {result.about['kept_epoch']} of {result.about['epochs']} is kept.</p>"]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"


def _curves(result: Result) -> list[str]:
    series = result.about["series"]
    kept = result.about["kept_epoch"]
    losses = [epoch["training_loss"] for epoch in series]
    measured = "Held-out accuracy by epoch, %" if result.about["options"]["hold_out"] else "Test accuracy by epoch, %"
    shares = [None if epoch["test_accuracy"] is None else 100 * epoch["test_accuracy"] for epoch in series]
    curves = [_curve("Training loss by epoch", losses, kept)]
    curves += [_curve(measured, [share for share in shares if share is not None], kept)] if None not in shares else []
    return ["<div class=curves>", *curves, "</div>"]


def _curve(title: str, values: Sequence[float], kept: int) -> str:
    """Values of the epochs from 1; a dashed line at the kept epoch."""
    ticks = _ticks(min(values), max(values))

    def x(epoch: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (epoch - 1) / max(1, len(values) - 1)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    points = [f"{x(epoch):.1f},{y(value):.1f}" for epoch, value in enumerate(values, 1)]
    parts = [
        f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#e4e7eb"/>'
        f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        for tick in ticks
    ]
    parts += [
        f'<text x="{x(epoch):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{epoch}</text>'
        for epoch in _marked_epochs(len(values))
    ]
    parts.append(f'<path d="M{x(kept):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#59636e" stroke-dasharray="3 3"/>')
    parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="#0969da" stroke-width="2"/>')
    if len(values) <= DOTS:
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="#0969da"/>' for x, y in (each.split(",") for each in points)]
    first, last = f"{values[0]:.4g}", f"{values[-1]:.4g}"
    spoken = f"{title}: {first} in epoch 1, {last} in epoch {len(values)}; epoch {kept} is kept"
    picture = f'<svg role="img" aria-label="{spoken}" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
    return f"<div><p>{title}</p>{picture}{''.join(parts)}</svg></div>"


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from at most `low` to at least `high`, at least two."""
    spread = max(high - low, 1e-3 * max(abs(high), 1e-3))
    step = 10.0 ** np.floor(np.log10(spread))
    step *= next(factor for factor in (0.2, 0.5, 1, 2) if spread / (factor * step) <= 5.5)
    first, last = int(np.floor(low / step)), int(np.ceil(high / step))
    return [float(f"{number * step:.6g}") for number in range(first, max(last, first + 1) + 1)]


def _marked_epochs(count: int) -> list[int]:
    """The first, the last, and some between."""
    return sorted({1 + round(part * (count - 1) / 5) for part in range(6)})


def _matrix(result: Result) -> list[str]:
    wrong = result.confusion.sum(1) - result.confusion.diagonal()
    classes = np.sort(np.argsort(-wrong, kind="stable")[:MOST_CLASSES])
    labels, counts = [result.labels[number] for number in classes], result.confusion[np.ix_(classes, classes)]
    sums = result.confusion.sum(1)[classes]
    left_out = len(result.labels) - len(classes)
    told = "A row for each class, a column for each answer; shades are shares of the row."
    if left_out:
        told += f" Of {len(result.labels)} classes the {len(classes)} with the most mistakes."
    turned = " class=upright" if max(map(len, labels)) > SHORT else ""
    head = "".join(f'<th scope="col"><div{turned}>{escape(_short(label))}</div></th>' for label in labels)
    sized = " class=small" if len(labels) > 20 else ""
    rows = [
        f'<tr><th scope="row">{escape(_short(label))}</th>{_cells(labels, row, counts[row], int(sums[row]))}</tr>'
        for row, label in enumerate(labels)
    ]
    sums = '<th class=sum scope="col">right</th><th class=sum scope="col">pictures</th>'
    return [
        f"<p class=quiet>{told}</p>",
        f"<div class=scroll><table{sized}><thead><tr><td class=sum></td>{sums}{head}</tr></thead>",
        f"<tbody>{''.join(rows)}</tbody></table></div>",
    ]


def _cells(labels: Sequence[str], row: int, counts: NDArray[np.int64], total: int) -> str:
    """Right answers in blue, wrong answers in orange."""
    cells = []
    for column, count in enumerate(counts.tolist()):
        share = count / total if total else 0.0
        colour = "9, 105, 218" if column == row else "217, 96, 0"
        shade = f' style="background: rgba({colour}, {0.08 + 0.6 * share:.2f})"' if count else ""
        what = escape(f"{labels[row]}, answered {labels[column]}: {count}", quote=True)
        cells.append(f'<td{shade} title="{what}">{count or ""}</td>')
    right = _percent(int(counts[row]), total)
    return f"<td class=sum>{right}</td><td class=sum>{total}</td>{''.join(cells)}"


def _short(label: str) -> str:
    return label if len(label) <= 24 else f"{label[:22]}…"


def _mistakes(result: Result) -> list[str]:
    if not result.mistakes:
        return ["<p>None: all answers are right.</p>"]
    wrong = result.pictures - result.right
    which = (
        f"{len(result.mistakes)} of {wrong:,} wrong answers" if wrong > len(result.mistakes) else "All wrong answers"
    )
    told = f"<p class=quiet>{which}, least probable label first. A picture with a wrong label is among them, too.</p>"
    return [told, "<div class=mistakes>", *map(_mistake, result.mistakes), "</div>"]


def _mistake(mistake: Mistake) -> str:
    height, width = mistake.pixels.shape[1:]
    enlarged = max(height, width) < SHOWN_SIDE
    scale = SHOWN_SIDE / max(height, width) if enlarged else 1.0
    size = f'width="{round(scale * width)}" height="{round(scale * height)}"{" class=enlarged" if enlarged else ""}'
    label, answer = escape(mistake.label, quote=True), escape(mistake.answer, quote=True)
    image = f'<img src="data:image/png;base64,{_png(mistake.pixels)}" {size} alt="{label}, answered {answer}">'
    shares = f"<br>{100 * mistake.probability:.1f} %, the label {100 * mistake.of_label:.1f} %"
    file = f"<br><span class=quiet>{escape(mistake.file)}</span>" if mistake.file else ""
    caption = f"<figcaption>{label}, answered <b>{answer}</b>{shares}{file}</figcaption>"
    return f"<figure><div>{image}</div>{caption}</figure>"


def _png(pixels: NDArray[np.uint8]) -> str:
    """uint8 (1 or 3, H, W) -> a PNG in base64."""
    buffer = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _training(result: Result) -> list[str]:
    config = result.about["config"]
    height, width = config["image_size"]
    what = "colour" if config["channels"] == 3 else "grey"
    facts = {
        "Command": result.about["command"],
        "Pictures": f"{width} x {height} pixels, {what}, {len(result.labels)} classes",
        "Network": _listed(_network(config)),
        "Options": _listed(result.about["options"]),
    }
    return ["<dl>", *(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items()), "</dl>"]


def _listed(values: Mapping[str, Any]) -> str:
    """Name and value of all that is set."""
    shown = {name: value for name, value in values.items() if value is not None and value is not False}
    return ", ".join(
        f"{name} {' x '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in shown.items()
    )


def _network(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the network reads."""
    sizes: tuple[str, ...] = ("dim",) if config["model"] == "cnn" else ()
    if config["model"] in TRANSFORMER_NAMES:
        sizes = ("depth", "dim", "heads", "dim_head", "mlp_dim", "patch_size")
    return {name: config[name] for name in ("model", *sizes)}
