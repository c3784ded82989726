"""The errors of all rewrites."""

from export.errors import ExportError


class RewriteError(ExportError, ValueError):
    """A rewrite that cannot be done exactly; the message names the layer, what was expected and what was found."""


class DoesNotApply(RewriteError):
    """A rewrite that this network has no use for: nothing to rewrite, or no multiplications saved."""
