"""The blocks of a page that results fill: `<!-- KIND WORDS -->` stands before a block, `<!-- end -->` after it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

MARKED = re.compile(r"<!-- (\w+) ([^>]*?) -->\n.*?<!-- end -->", re.DOTALL)


def fill(page: str, makers: Mapping[str, Callable[[Sequence[str]], str]]) -> str:
    """The page with new blocks. `makers`: kind -> function from the marker's words to the text of the block.

    Blocks of other kinds stay as they are.
    """

    def block(match: re.Match[str]) -> str:
        kind, words = match[1], match[2]
        if kind not in makers:
            return match[0]
        return "\n".join(filter(None, [f"<!-- {kind} {words} -->", makers[kind](words.split()), "<!-- end -->"]))

    return MARKED.sub(block, page)


def marker_words(page: str, kind: str) -> list[str]:
    """The words of each marker of that kind, joined by spaces."""
    return [match[2] for match in MARKED.finditer(page) if match[1] == kind]
