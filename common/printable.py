"""Text that stands on one line of a terminal as it was typed."""

# Of the signs without a shape these belong to words of Persian and of Indian languages, and to emoji.
JOINERS = "\u200c\u200d"


def is_printable(text: str) -> bool:
    """Whether the text has no line break, no control character and no other sign without a shape but joiners."""
    return all(char.isprintable() or char in JOINERS for char in text)


def printable(text: str) -> str:
    """The text as a single line: unprintable characters are escaped as in Python's strings."""
    return "".join(char if is_printable(char) else char.encode("unicode_escape").decode() for char in text)
