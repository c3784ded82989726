"""Numbers with their nouns, for messages."""


def counted(number: int, noun: str, separator: str = "") -> str:
    """Number and noun: "1 picture", "2 pictures". `separator`: of thousands. `noun`: with a plural in s."""
    return f"{number:{separator}} {noun}{'s' * (number != 1)}"
