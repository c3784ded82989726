"""Exact inference rewrites: functions model -> model. The caller's model stays as it is.

In: a network of models/ in eval mode. Out: a network of the same dtype with the same answers and less work. Rewrites
run in float64 and agree to 1e-10; conversion to float32 comes last.
"""
