"""No circle of modules, no import of a higher folder; imports inside functions and for types count."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = {
    "common": 0,
    "vitbn_packages": 1,
    "models": 2,
    "serving": 2,
    "clients": 2,
    "export": 3,
    "benchmarks": 4,
    "vitbn": 5,
}


def modules(root: Path) -> dict[str, Path]:
    """Dotted name -> file."""
    files = [path for name in FLOORS for path in (root / f"{name}.py", *(root / name).rglob("*.py")) if path.exists()]
    named = {".".join(path.relative_to(root).with_suffix("").parts): path for path in files}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: expected absolute imports"
            yield from (name for alias in node.names for name in (str(node.module), f"{node.module}.{alias.name}"))


def faults(root: Path) -> list[str]:
    files = modules(root)
    arrows = {name: {other for other in imported(path) if other in files} - {name} for name, path in files.items()}
    pairs = [(name, other) for name, others in arrows.items() for other in others]
    rooms = {(name, other): (name.partition(".")[0], other.partition(".")[0]) for name, other in pairs}
    up = [f"{name} -> {other}" for (name, other), (a, b) in rooms.items() if a != b and FLOORS[b] >= FLOORS[a]]
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        up.append(" -> ".join(reversed(error.args[1])))
    return up


def test_no_module_imports_itself_in_a_circle_or_a_higher_folder() -> None:
    assert faults(ROOT) == []


TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


@pytest.mark.parametrize(
    ("planted", "tied"),
    [
        ("import models.b", "models.b"),
        ("def later():\n    from models import b", "models.b"),
        (TYPES + "from models.b import B", "models.b"),
        (TYPES + "from export.c import C", "export.c"),
        ("def later():\n    import vitbn", "vitbn"),
        ("from serving import d", "serving.d"),
    ],
)
def test_a_planted_import_is_seen(tmp_path: Path, planted: str, tied: str) -> None:
    files = {"models/a": planted, "models/b": "from models.a import A", "export/c": "", "serving/d": "", "vitbn": ""}
    for name, text in files.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (fault,) = faults(tmp_path)
    assert set(fault.split(" -> ")) == {"models.a", tied}
    (tmp_path / "models/a.py").write_text("")
    assert faults(tmp_path) == []
