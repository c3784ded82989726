class ExportError(Exception):
    """The message is one line for the user."""


class Unavailable(ExportError):
    """The message says how to get what is missing."""
