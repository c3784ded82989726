from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    import tabulate

    sides = ["left" if i < 2 else "right" for i in range(len(header))]
    usual, tabulate.MIN_PADDING = tabulate.MIN_PADDING, 0  # 2, the default, makes the widest table too wide
    try:
        text: str = tabulate.tabulate(rows, header, "simple", colalign=sides if rows else None, disable_numparse=True)
    finally:
        tabulate.MIN_PADDING = usual  # pandas' tables use it too
    return text
