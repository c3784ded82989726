"""The error of what cannot be measured here."""


class Unavailable(Exception):
    """A runtime that this machine or model does not have; the message says what is missing."""
