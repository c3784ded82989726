"""Addresses HOST:PORT, IPv6 in brackets."""

from __future__ import annotations

import ipaddress
import re
import socket
from contextlib import suppress

LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # every interface -> how this machine reaches a server there


def is_address(text: str) -> bool:
    """Whether a text is HOST:PORT."""
    match = re.fullmatch(r"(?:\[([^\s/@?#;\[\]]+)\]|[^\s/@?#;:\[\]]+):([0-9]{1,5})", text)
    with suppress(ValueError):
        return match is not None and int(match[2]) <= 65535 and (not match[1] or bool(ipaddress.IPv6Address(match[1])))
    return False


def split_address(address: str) -> tuple[str, int, socket.AddressFamily]:
    """Host without brackets, port, family."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port), socket.AF_INET6 if ":" in host else socket.AF_INET


def join_address(host: str, port: int) -> str:
    """HOST:PORT at which this machine reaches a server that listens at `host`, an address without brackets."""
    host = LOOPBACK_OF.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a name or address, IPv6 with or without brackets, means this machine alone."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False
