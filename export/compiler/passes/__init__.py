"""Passes: rewrites of a graph that leave its outputs as they are.

The pass "fold-affine" is the function `fold_affine` in fold_affine.py, and so on. This file imports no pass, as the
commands' help needs the names at once.
"""

PASSES = (
    "fold-affine",  # first: with a scale between two products the other passes do not recognise rows and heads
    "read-rows",  # before absorption, which pays where the last block has few queries
    "absorb-queries",
    "absorb-embedding",  # reads the form that absorb-queries gives a constant query
    "reorder-products",  # after absorption, which saves more where it applies
    "carry-biases",  # needs all biases of a block, also those that absorption makes
    "split-products",  # after the passes that split or merge products themselves
    "tidy",  # last: it cleans up behind the others
)
MOVING = frozenset({"read-rows", "split-products"})  # passes that compute no new weights
QUICKER = frozenset({"split-products"})  # passes that save copies, which costs do not count
