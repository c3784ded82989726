"""The base: time, progress, result files, option types. Imports no other part of `benchmarks/`."""
