"""Clients of the server: preprocessing, typed clients, command line, page. No torch."""
