"""Formats that several folders read or write. Imports no other folder."""
