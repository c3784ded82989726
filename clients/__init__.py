"""Clients of the server: preprocessing, a typed wrapper and the command line. No torch."""
