"""Errors of the export stages; their messages are for the user."""


class ExportError(Exception):
    """Nothing was written; the message says why in one line."""


class Unavailable(ExportError):
    """This machine or model lacks something; the message says what, and how to get it."""
