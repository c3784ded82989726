"""Load on servers by NVIDIA's perf_analyzer, and the same load in this process."""
