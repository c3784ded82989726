"""Breaks a real server and counts what its clients see. Each fault is a module or a function."""
