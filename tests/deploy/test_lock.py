"""requirements.lock has the whole of `make setup`, in the versions of constraints.txt, each file with its hash."""

import copy
import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "requirements.lock").read_text().splitlines()
LOCKED = dict(re.fullmatch(r"(\S+)==(\S+) --hash=sha256:[0-9a-f]{64}", line).groups() for line in LINES[1:])
LEFT_OUT = {"torch", "vitbn"}
REPORT = {
    "environment": {"python_version": "3.11", "platform_machine": "x86_64"},
    "install": [
        {
            "metadata": {"name": name, "version": "1.0"},
            "download_info": {"url": f"https://example.org/{name}.whl", "archive_info": {"hashes": {"sha256": digest}}},
        }
        for name, digest in (("b", "2" * 64), ("a", "1" * 64), ("torch", "3" * 64))
    ],
}


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> None:
    """Adds what an installed package needs, with its extras."""
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            needed(canonicalize_name(requirement.name), frozenset(requirement.extras), seen)


def test_the_versions_are_those_of_the_constraints() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==([^\s#]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    differing = {name: version for name, version in LOCKED.items() if pinned.get(canonicalize_name(name)) != version}
    assert differing.keys() <= {"importlib_resources", "setuptools"}, "run: make lock"


def test_everything_that_is_set_up_is_there() -> None:
    seen: set[tuple[str, frozenset[str]]] = set()
    try:
        needed("vitbn", frozenset({"dev"}), seen)
    except PackageNotFoundError as error:
        pytest.fail(f"make setup has not installed {error}")
    names = {name for name, _ in seen}
    assert len(names) > 100
    assert names - {canonicalize_name(name) for name in LOCKED} == LEFT_OUT, "run: make lock"


def written(report: object) -> subprocess.CompletedProcess[str]:
    program = "import json, sys, write_lock; print(write_lock.locked(json.load(sys.stdin)), end='')"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "docs", input=json.dumps(report), capture_output=True, text=True
    )


def test_a_report_becomes_sorted_lines_without_torch() -> None:
    assert written(REPORT).stdout.splitlines()[1:] == [
        f"a==1.0 --hash=sha256:{'1' * 64}",
        f"b==1.0 --hash=sha256:{'2' * 64}",
    ]


def test_a_file_without_a_hash_is_refused() -> None:
    report = copy.deepcopy(REPORT)
    report["install"][0]["download_info"] = {"url": "file:///b", "dir_info": {}}
    done = written(report)
    assert done.returncode != 0
    assert done.stderr.endswith("ValueError: b 1.0: expected a file with a SHA-256, found file:///b\n")
