"""Errors of the export stages; their messages are for the user."""


class ExportError(Exception):
    """Nothing was written; one line says why."""


class Unavailable(ExportError):
    """This machine or model lacks something; the message says what, and how to get it."""
