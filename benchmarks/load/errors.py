"""Errors of a load on a server."""


class Failed(Exception):
    """A load that could not be measured."""


class WrongAnswer(Failed):
    """A load whose answers differ from the expected logits, so its times count for nothing."""
