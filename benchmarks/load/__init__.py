"""Load on servers, by NVIDIA's perf_analyzer and by vitbn bulk."""
