"""A page of text, tables and pictures, as Markdown and as self-contained HTML."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph; `code` and **bold** as in Markdown."""

    text: str


@dataclass(frozen=True)
class Points:
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """The first `names` columns hold names (left), the others numbers (right)."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1


@dataclass(frozen=True)
class Picture:
    """`name`: the file name without suffix."""

    name: str
    caption: str
    png: bytes
    svg: bytes


Block = Heading | Text | Points | Table | Picture


def markdown(title: str, blocks: Iterable[Block]) -> str:
    return "\n\n".join((f"# {title}", *map(_markdown, blocks))) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {text}"
        case Text(text):
            return text
        case Points(texts):
            return "\n".join(f"- {text}" for text in texts)
        case Table(header, rows, names):
            rule = "|".join("---" if i < names else "---:" for i in range(len(header)))
            return "\n".join((_markdown_row(header), f"|{rule}|", *map(_markdown_row, rows)))
        case Picture(name, caption):
            return f"![{caption}]({name}.png)"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #ffffff; --faint: #6b6b6b; --line: #d9d9d9; --tint: #f5f5f5 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181b; --faint: #a0a0a0; --line: #3a3d42; --tint: #1f2226 }
}
body { margin: 0 auto; max-width: 70rem; padding: 1.5rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.8rem; line-height: 1.2 }
h2 { margin-top: 3rem; padding-top: .8rem; border-top: 1px solid var(--line); font-size: 1.3rem }
nav { columns: 2 24rem; font-size: .95rem }
nav a { display: block }
a { color: inherit }
code { padding: .1em .3em; background: var(--tint); font-size: .9em; overflow-wrap: anywhere }
.table { margin: 1rem 0 1.5rem; overflow-x: auto }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th { color: var(--faint); font-weight: 600; white-space: normal; vertical-align: bottom }
td.name, th.name { text-align: left }
td.name { max-width: 26rem; white-space: normal }
tbody tr:nth-child(even) { background: var(--tint) }
figure { margin: 1.5rem 0; padding: .8rem; border: 1px solid var(--line); background: #ffffff }
figure img { display: block; width: 100%; height: auto }
figcaption { color: #555555; font-size: .85rem }
@media print { body { max-width: none } h2 { break-after: avoid } figure, tr { break-inside: avoid } }
"""


def html(title: str, blocks: Sequence[Block]) -> str:
    headings = [block.text for block in blocks if isinstance(block, Heading)]
    links = "".join(f'<a href="#{_anchor(text)}">{escape(text)}</a>\n' for text in headings)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<nav>\n{links}</nav>\n" + "\n".join(map(_html, blocks)) + "\n</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    match block:
        case Heading(text):
            return f'<h2 id="{_anchor(text)}">{escape(text)}</h2>'
        case Text(text):
            return f"<p>{_inline(text)}</p>"
        case Points(texts):
            return "<ul>\n" + "\n".join(f"<li>{_inline(text)}</li>" for text in texts) + "\n</ul>"
        case Table(header, rows, names):
            head = _html_row("th", header, names)
            body = "\n".join(_html_row("td", row, names) for row in rows)
            return f'<div class="table"><table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
        case Picture(_, caption, _, svg):
            source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
            shown = f'<img src="{source}" alt="{escape(caption)}">'
            return f"<figure>{shown}<figcaption>{escape(caption)}</figcaption></figure>"


def _html_row(tag: str, cells: Sequence[str], names: int) -> str:
    kinds = [' class="name"' if i < names else "" for i in range(len(cells))]
    inner = "".join(f"<{tag}{kind}>{_inline(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
    return f"<tr>{inner}</tr>"


def _inline(text: str) -> str:
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", marked)


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
