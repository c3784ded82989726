"""Faults of a real server, each a module or a function, and what its clients see."""
