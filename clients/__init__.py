"""Clients of the server: preprocessing, typed clients, the command line, the page. No torch."""
