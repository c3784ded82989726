"""Models in runtimes and precisions, checked and timed."""
