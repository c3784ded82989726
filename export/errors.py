"""Errors of the export stages; their messages are for the user."""


class ExportError(Exception):
    """Nothing was written; one line says why."""


class Unavailable(ExportError):
    """The machine or the model lacks something; the message says how to get it."""
