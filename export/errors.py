"""Errors of the stage; the compiler, which imports nothing else of ours, has their root."""

from export.compiler.errors import ExportError

__all__ = ["ExportError", "PublishError", "RewriteError", "Unavailable", "reason"]


class Unavailable(ExportError):
    """The message says how to get what is missing."""


class RewriteError(ExportError):
    """A network that no exact rewrite takes. The message names the layer."""


class PublishError(ExportError):
    """A file or a repository that is not as expected."""


def reason(error: Exception) -> str:
    """Why a file could not be read, without Python's class names."""
    if isinstance(error, KeyError):
        return f"no {error}"
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
