"""The base: time, memory, progress, result files, option types. Imports no other part of `benchmarks/`."""
