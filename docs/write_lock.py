"""Writes requirements.lock: the packages of `make setup`, each with the SHA-256 of its file.

In: pip's report of an installation, as JSON on the standard input (`make lock`). Out: the lock file, for the Python and
the machine that made the report. torch is left out: its file depends on the package index, of CPU or CUDA builds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parents[1] / "requirements.lock"
LEFT_OUT = ("torch", "vitbn")
HEAD = "# Made by `make lock` for Python {python} on {machine} Linux, without torch. Do not edit.\n"


def locked(report: dict[str, Any]) -> str:
    """The text of the lock file. `report`: pip's. Raises ValueError for a package without a hash."""
    lines = []
    for entry in report["install"]:
        name, version = entry["metadata"]["name"], entry["metadata"]["version"]
        if name in LEFT_OUT:
            continue
        digest = entry["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if not digest:
            raise ValueError(f"{name} {version}: expected a file with a SHA-256, found {entry['download_info']['url']}")
        lines.append(f"{name}=={version} --hash=sha256:{digest}\n")
    environment = report["environment"]
    python, machine = environment["python_version"], environment["platform_machine"]
    return HEAD.format(python=python, machine=machine) + "".join(sorted(lines, key=str.lower))


if __name__ == "__main__":
    LOCK.write_text(locked(json.load(sys.stdin)))
