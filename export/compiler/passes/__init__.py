"""Changes of a graph that leave its answers as they are.

The pass "fold-affine" is the function `fold_affine` of fold_affine.py. The commands' help needs these names at once, so
this file imports no pass.
"""

PASSES = (
    "fold-affine",  # first: a scale between two products hides their rows and heads from the others
    "read-rows",  # then: few queries in the last block make its absorption pay
    "absorb-queries",
    "absorb-embedding",  # reads the form that absorb-queries gives a constant query
    "carry-biases",  # needs all biases of a block, also those that absorption made
    "split-products",  # of layers whose products no other pass takes apart
    "tidy",  # last: it removes what the others leave
)
MOVING = frozenset({"read-rows", "split-products"})  # passes that compute no new weights
QUICKER = frozenset({"split-products"})  # passes that save copies, which costs do not count
