"""The ground: time, memory, progress, result files and option types. It imports no other part of `benchmarks/`."""
