"""Parses and checks HTTP headers that a user gives as NAME:VALUE."""

from __future__ import annotations

import re
from collections.abc import Sequence


def parse_headers(texts: Sequence[str]) -> dict[str, str]:
    """Returns name -> value for texts NAME:VALUE. Raises ValueError."""
    headers = {}
    for text in texts:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon:
            raise ValueError(f"header: expected NAME:VALUE, found {text!r}")
        check_header(name, value)
        headers[name] = value
    return headers


def check_header(name: str, value: str) -> None:
    """Raises ValueError unless HTTP and gRPC can both send the header (RFC 9110)."""
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
        raise ValueError(f"header: expected a name of letters, digits and hyphens, found {name!r}")
    if not re.fullmatch(r"([!-~]([ -~]*[!-~])?)?", value):
        raise ValueError(f"header {name}: expected printable ASCII, found {value!r}")
    if name.lower() in ("transfer-encoding", "content-length", "content-encoding", "inference-header-content-length"):
        raise ValueError(f"header {name}: expected no header that describes the request's own body")
