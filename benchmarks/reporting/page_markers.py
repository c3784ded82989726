"""The blocks of a page that results fill: `<!-- KIND WORDS -->` stands before a block, `<!-- end -->` behind it.

In: a page and, for each kind, what makes a block of its words. Out: the page with these blocks; others stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

MARKED = re.compile(r"<!-- (\w+) ([^>]*?) -->\n.*?<!-- end -->", re.DOTALL)


def fill(page: str, makers: Mapping[str, Callable[[Sequence[str]], str]]) -> str:
    def block(match: re.Match[str]) -> str:
        kind, words = match[1], match[2]
        if kind not in makers:
            return match[0]
        return "\n".join(filter(None, [f"<!-- {kind} {words} -->", makers[kind](words.split()), "<!-- end -->"]))

    return MARKED.sub(block, page)


def named(page: str, kind: str) -> list[str]:
    """The words of each marker of that kind."""
    return [match[2] for match in MARKED.finditer(page) if match[1] == kind]
