from export.errors import ExportError


class RewriteError(ExportError, ValueError):
    """A rewrite that cannot be exact. The message names the layer."""


class DoesNotApply(RewriteError):
    """Nothing to rewrite, or no multiplication saved."""
