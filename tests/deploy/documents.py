"""deploy/'s YAML documents, overlays merged as kustomize merges them."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
MOST = 4  # misspelt fields of a document; each costs a validation
FREE = {"labels", "matchLabels", "selector", "requests", "limits", "annotations", "metadata"}  # keys are the user's


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def merge(base: Any, patch: Any) -> Any:
    """Mappings by key, lists of named things by name, null removes, anything else replaces."""
    if isinstance(base, dict) and isinstance(patch, dict):
        merged = {key: merge(base.get(key), value) for key, value in patch.items() if value is not None}
        return {key: value for key, value in base.items() if key not in patch} | merged
    named = all(isinstance(each, list) and each and isinstance(each[0], dict) for each in (base, patch))
    if named and "name" in base[0] and "name" in patch[0]:
        patches = {each["name"]: each for each in patch}
        return [merge(each, patches.pop(each["name"], {})) for each in base] + list(patches.values())
    return deepcopy(patch)


def overlay(name: str, instead: Mapping[Path, Any] = MappingProxyType({})) -> list[dict[str, Any]]:
    """base/ with the patches of overlays/NAME; `instead` replaces patch files."""
    (kustomization,) = documents(KUBERNETES / "overlays" / name / "kustomization.yaml")
    files = documents(KUBERNETES / "base/kustomization.yaml")[0]["resources"]
    merged = [each for file in files for each in documents(KUBERNETES / "base" / file)]
    for listed in kustomization["patches"]:
        path = KUBERNETES / "overlays" / name / listed["path"]
        patch = instead[path] if path in instead else documents(path)[0]
        which = (patch["kind"], patch["metadata"]["name"])
        places = [i for i, each in enumerate(merged) if (each["kind"], each["metadata"]["name"]) == which]
        assert len(places) == 1, which
        merged[places[0]] = merge(merged[places[0]], patch)
    return merged


def misspelt(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Misspells in turn some fields below the first level; free keys stay."""
    fields = list(_fields(document, ()))
    for path in fields[:: max(1, len(fields) // MOST)]:
        changed = deepcopy(document)
        place: Any = changed
        for step in path[:-1]:
            place = place[step]
        place[f"{path[-1]}x"] = place.pop(path[-1])
        yield ".".join(map(str, path)), changed


def _fields(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, below in value.items():
            if path and below is not None:
                yield (*path, key)
            if key not in FREE or (key == "selector" and "matchLabels" in below):
                yield from _fields(below, (*path, key))
    elif isinstance(value, list):
        for place, below in enumerate(value):
            yield from _fields(below, (*path, place))
