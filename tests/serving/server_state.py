"""What a running server shows: right answers, its shared memory."""

from pathlib import Path

from clients.probing.server_probe import probe_server
from clients.probing.verdicts import Probe
from serving.local_server import Server


def right(server: Server) -> Probe | None:
    """The probe of a server whose every answer is right, else None."""
    found = probe_server(server.http_url, timeout_s=5)
    return found if found.ok else None


def served(server: Server, model: str | None = None) -> set[str]:
    """The versions that answer, of `model` or of all."""
    found = probe_server(server.http_url, timeout_s=5)
    return {each.version for each in found.versions if model in (None, each.model)}


def shared_memory(server: Server) -> set[Path]:
    """The regions that the server holds open and that still have a name."""
    fields = (line.split() for line in Path(f"/proc/{server.pid}/maps").read_text().splitlines())
    return {Path(path) for *_, path in fields if path.startswith("/dev/shm/") and Path(path).exists()}
