"""Figures and tables of studies."""
