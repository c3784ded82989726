"""The base of every error of this stage whose message is meant for its user: what was expected and what was found."""


class ExportError(Exception):
    """Nothing was written; the message says why in one line."""
