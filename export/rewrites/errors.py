"""The errors of all rewrites."""

from export.errors import ExportError


class RewriteError(ExportError, ValueError):
    """A rewrite that cannot be exact; the message names the layer, what was expected and what was found."""


class DoesNotApply(RewriteError):
    """A rewrite of no use to this network: nothing to rewrite, or no multiplications saved."""
