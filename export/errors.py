"""Errors of the stage; the compiler, which imports nothing else of ours, has their root."""

from collections.abc import Iterator
from contextlib import contextmanager

from common.repository import Damaged
from export.compiler.errors import ExportError

__all__ = ["ExportError", "PublishError", "RewriteError", "Unavailable", "as_published"]


class Unavailable(ExportError):
    """The message says how to get what is missing."""


class RewriteError(ExportError):
    """A network that no exact rewrite takes. The message names the layer."""


class PublishError(ExportError):
    """A file or a repository that is not as expected."""


@contextmanager
def as_published() -> Iterator[None]:
    """Turns Damaged into PublishError."""
    try:
        yield
    except Damaged as error:
        raise PublishError(str(error)) from error
