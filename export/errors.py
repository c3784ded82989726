class ExportError(Exception):
    """The message is one line for the user."""


class Unavailable(ExportError):
    """The message says how to get what is missing."""


class PublishError(ExportError):
    """A file or a repository that is not as expected."""


def reason(error: Exception) -> str:
    """Why a file could not be read, without Python's class names."""
    if isinstance(error, KeyError):
        return f"no {error}"
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
