"""The model repository on disk and in a running server."""
