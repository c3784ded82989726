"""Draws docs/pipeline.svg: the stages from a checkpoint to an answer. Readable on light and dark pages.

python docs/draw_pipeline.py
"""

from __future__ import annotations

from pathlib import Path

# Name, description, and command of each stage.
BOXES = (
    ("checkpoint", "PyTorch", "vitbn train"),
    ("rewrite", "exact algebra", "vitbn export"),
    ("ONNX file", "any runtime", ""),
    ("engine", "CPU or GPU", ""),
    ("repository", "versions", "vitbn repository"),
    ("server", "NVIDIA Triton", "vitbn serve"),
    ("client", "HTTP, gRPC", "vitbn infer"),
)
WIDTH, HEIGHT, GAP, LEFT, TOP = 118, 64, 24, 8, 34
STYLE = """
  text { font: 13px system-ui, sans-serif; text-anchor: middle; fill: #1f2328 }
  .small { font-size: 10.5px; fill: #59636e }
  .code { font: 10.5px ui-monospace, monospace; fill: #0550ae }
  rect { fill: #f6f8fa; stroke: #59636e }
  .own { fill: #ddf4ff; stroke: #0969da }
  path { stroke: #59636e; fill: none; marker-end: url(#arrow) }
  marker path { fill: #59636e; stroke: none; marker-end: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .small { fill: #9198a1 } .code { fill: #79c0ff }
    rect { fill: #151b23; stroke: #9198a1 } .own { fill: #121d2f; stroke: #4493f8 }
    path { stroke: #9198a1 } marker path { fill: #9198a1 }
  }
"""


def drawing() -> str:
    """The text of the SVG file."""
    width = 2 * LEFT + len(BOXES) * WIDTH + (len(BOXES) - 1) * GAP
    bottom = TOP + HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 78}" role="img"'
        ' aria-label="Checkpoint, rewrite, ONNX file, engine, repository, server, client">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z"/></marker></defs>',
    ]
    for number, (name, description, command) in enumerate(BOXES):
        x = LEFT + number * (WIDTH + GAP)
        middle = x + WIDTH / 2
        css_class = ' class="own"' if name == "rewrite" else ""
        parts.append(f'<rect{css_class} x="{x}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>')
        parts.append(f'<text x="{middle}" y="{TOP + 28}">{name}</text>')
        parts.append(f'<text class="small" x="{middle}" y="{TOP + 46}">{description}</text>')
        parts.append(f'<text class="code" x="{middle}" y="{TOP - 10}">{command}</text>')
        if number:
            parts.append(f'<path d="M{x - GAP} {TOP + HEIGHT / 2}H{x - 1}"/>')
    rewrite_middle = LEFT + WIDTH + GAP + WIDTH / 2
    parts += [
        f'<rect x="{LEFT}" y="{bottom + 24}" width="{WIDTH}" height="40" rx="6"/>',
        f'<text x="{LEFT + WIDTH / 2}" y="{bottom + 48}">any ONNX file</text>',
        f'<path d="M{LEFT + WIDTH} {bottom + 44}H{rewrite_middle}V{bottom + 1}"/>',
        f'<text class="code" x="{rewrite_middle}" y="{bottom + 60}">vitbn rewrite</text>',
        f'<text class="small" x="{(rewrite_middle + width) / 2}" y="{bottom + 30}">'
        "Each stage checks its output against the previous one and refuses to write if they disagree.</text>",
        "</svg>",
    ]
    return "\n".join(part for part in parts if "></text>" not in part) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("pipeline.svg").write_text(drawing())
