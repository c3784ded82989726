"""Exact inference rewrites: pure functions model -> model that leave the caller's model alone.

In: a network of models/ in eval mode. Out: a network of the same dtype with the same answers and less work. `pipeline`
applies several, in the order of its `ALL`, to a float64 network: the answers agree to 1e-10, and float32 comes last.
Each raises RewriteError, naming layer and reason, if it cannot be exact.
"""
