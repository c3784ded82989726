"""The lines that commands print about the compiler's passes: cost after each pass, places changed, refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from export.compiler.operators.costs import Work
from export.compiler.pipeline import Step


def step_lines(before: str, work: Work, of: str, steps: Sequence[Step]) -> Iterator[str]:
    """Lines for people: the cost before the passes, then a line or two for each pass.

    `before`: the label of the first line. `work`: the cost before the passes. `of`: what the cost is counted for, such
    as " an image".
    """
    width = 25 if work.uncounted else 16
    yield f"  {before:16}{_counted(work):>{width}} multiply-accumulates{of}"
    if work.uncounted:
        names = f"{', '.join(work.uncounted[:3])}{' …' if len(work.uncounted) > 3 else ''}"
        yield f"  {'not counted':16}{len(work.uncounted):>{width}}  {names}"
    for step in steps:
        if step.left_out:
            yield f"  {step.name:16}{'left out':>{width}}  {step.left_out}"
            continue
        places = f"{len(step.sites)} places, " if len(step.sites) > 1 else ""
        yield f"  {step.name:16}{_counted(step.work):>{width}}  {places}{step.sites[0]}{' …' if places else ''}"
        if step.stopped:
            yield f"  {'':16}{'stopped at':>{width}}  {step.stopped}"


def _counted(work: Work) -> str:
    return f"{'at least ' if work.uncounted else ''}{work.macs:,}"
