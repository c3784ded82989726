"""Analyses of a graph for the passes: what values hold, which parts are read, and what a rewrite would change."""
