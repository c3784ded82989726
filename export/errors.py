class ExportError(Exception):
    """The message is one line for the user."""


class Unavailable(ExportError):
    """The message says how to get what is missing."""


class PublishError(ExportError):
    """A file or a repository that is not as expected."""
