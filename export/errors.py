"""The errors of the export stages whose message is meant for the user: what was expected and what was found."""


class ExportError(Exception):
    """Nothing was written; the message says why in one line."""


class Unavailable(ExportError):
    """This machine or this model lacks what was asked for; the message says what is missing and how to get it."""
