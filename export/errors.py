"""Errors of the export stages. Their messages are meant for the user."""


class ExportError(Exception):
    """Nothing was written; the message says why in one line."""


class Unavailable(ExportError):
    """This machine or model lacks what was asked for. The message says what is missing and how to get it."""
