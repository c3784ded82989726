"""Exact inference rewrites: pure functions model -> model that leave the caller's model alone.

In: a network of models/ in eval mode. Out: a network of the same dtype that computes the same with less work. Who
composes several, in the order of `pipeline.ALL`, gives them a float64 network, with which they agree to 1e-10, and
casts once at the end. Each raises RewriteError, naming layer and reason, where it cannot be done.
"""
