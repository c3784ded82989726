"""Lists a server's models and chooses one of them. Models without a description are listed, never chosen."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from clients.errors import ModelMismatch, ModelNotFound, ModelNotReady, ServerError
from clients.model_description import FOREIGN, Description, describe
from clients.transport import INPUT, OUTPUT, Connection
from common.files import reason

_NOTHING = "the repository has nothing; publish a model, such as by vitbn export, and promote it"
_SERVE_IT = "if it is published: vitbn repository promote {} {}"


@dataclass(frozen=True)
class ServedModel(Description):
    name: str
    max_batch_size: int
    test_accuracy: float | None  # between 0 and 1
    versions: tuple[str, ...]  # the ready versions; the last answers requests


@dataclass(frozen=True)
class ListedModel:
    """`model` is None if the model is not ready or has no description; `reason` says why."""

    name: str
    model: ServedModel | None
    reason: str = ""


async def choose(connection: Connection) -> ServedModel:
    """The best of the ready models. Raises ModelNotFound if none is ready, or nobody knows which is best."""
    index = await connection.models()
    ready = sorted({entry["name"] for entry in index if _is_ready(entry)})
    if not ready:
        has = f"the repository has {_names(index)}{_serve_it(index)}" if index else _NOTHING
        raise ModelNotFound(f"no model is ready at {connection.url}; {has}")
    listed = await asyncio.gather(*(_list(connection, name) for name in ready)) if len(ready) > 1 else []
    candidates = [each.model for each in listed if each.model is not None]
    if not candidates:
        return await _describe(connection, ready[0])
    check_choice(candidates, connection.url)
    return best(candidates)


def check_choice(models: Sequence[ServedModel], url: str) -> None:
    """Raises ModelNotFound if the caller must name the model: labels differ, or the accuracy of a foreign model is
    unknown.
    """
    found = "different labels" if len({frozenset(model.labels) for model in models}) > 1 else ""
    if len(models) > 1 and any(model.framing is not None and model.test_accuracy is None for model in models):
        found = found or "models of unknown accuracy"
    if found:
        names = ", ".join(map(_with_labels, models))
        raise ModelNotFound(f"expected the name of a model (--model), found {found} at {url}: {names}")


def _with_labels(model: ServedModel) -> str:
    return f"{model.name} ({' '.join(model.labels[:3])}{' …' if len(model.labels) > 3 else ''})"


def best(models: Sequence[ServedModel]) -> ServedModel:
    """The most accurate transformer, else the most accurate CNN; the first of several."""
    return max(models, key=lambda model: (model.family != "cnn", model.test_accuracy or 0.0))


async def find(connection: Connection, name: str) -> ServedModel:
    if name and "/" not in name and await connection.ready(name):  # a slash would change the URL's path
        return await _describe(connection, name)
    index = await connection.models()
    entries = [entry for entry in index if entry["name"] == name]
    if not entries:
        raise ModelNotFound(f"model {name!r} is not at {connection.url}; {await _instead_of(connection, name)}")
    if any(map(_is_ready, entries)):  # the first server failed, another gave the index
        return await _describe(connection, name)
    raise ModelNotReady(f"model {name!r} is not ready at {connection.url}: {_state(entries)}{_serve_it(entries)}")


async def _instead_of(connection: Connection, name: str) -> str:
    """Names the server's models with their labels, and a model with nearly this name or with a label of this name.

    It tells how to serve `name`, which may be unloaded: without a key, a server lists only loaded models.
    """
    listed = await list_all(connection)
    there = ", ".join(_with_labels(each.model) if each.model else each.name for each in listed) or "nothing"
    near = get_close_matches(name, [each.name for each in listed], 1)
    near += [each.name for each in listed if each.model and name.lower() in map(str.lower, each.model.labels)]
    meant = f"did you mean {near[0]!r}? " if near else ""
    return f"there: {there}; {meant}{_SERVE_IT.format(name, 'VERSION')}"


async def list_all(connection: Connection) -> list[ListedModel]:
    index = await connection.models()
    ready = {entry["name"] for entry in index if _is_ready(entry)}
    absent = [
        ListedModel(name, None, _state([entry for entry in index if entry["name"] == name]))
        for name in {entry["name"] for entry in index} - ready
    ]
    present = await asyncio.gather(*(_list(connection, name) for name in ready))
    return sorted([*absent, *present], key=lambda each: each.name)


async def _list(connection: Connection, name: str) -> ListedModel:
    try:
        return ListedModel(name, await _describe(connection, name))
    except (ModelMismatch, ModelNotFound, ServerError) as refusal:
        return ListedModel(name, None, str(refusal))


def _is_ready(entry: dict[str, Any]) -> bool:
    return bool(entry.get("state") == "READY")


def _state(entries: list[dict[str, Any]]) -> str:
    reason = " ".join(str(entries[0].get("reason", "")).split())
    return f"{entries[0].get('state') or 'not loaded'}{reason and ', ' + reason}"


def _serve_it(entries: list[dict[str, Any]]) -> str:
    """Tells how to serve a model that nobody has loaded: a server's index lists it without a state."""
    unloaded = [entry for entry in entries if not entry.get("state")]
    if not unloaded:
        return ""
    name, version = unloaded[-1]["name"], unloaded[-1].get("version") or "VERSION"
    return f"; {_SERVE_IT.format(name, version)}"


def _names(index: list[dict[str, Any]]) -> str:
    return ", ".join(sorted({entry["name"] for entry in index}))


async def _describe(connection: Connection, name: str) -> ServedModel:
    metadata, config = await asyncio.gather(connection.metadata(name), connection.config(name))
    if "model_config" not in config.get("parameters", {}) and _reads_floats(metadata):
        raise ModelMismatch(
            f"model {name!r}: it reads pictures as floats; for clients its file is published by "
            "vitbn repository publish FILE.onnx --pictures --processor preprocessor_config.json"
        )
    try:
        tensors = {
            tensor["name"]: (tensor["datatype"], [int(extent) for extent in tensor["shape"]])
            for tensor in (*metadata.get("inputs", ()), *metadata.get("outputs", ()))
        }
        versions = tuple(str(version) for version in metadata.get("versions", ()))
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        about = describe(parameters)
        accuracy = float(parameters["test_accuracy"]) if "test_accuracy" in parameters else None
        # 0: the server does not batch; a parameter then limits requests
        limit = int(config.get("max_batch_size", 0)) or int(parameters.get("max_images", 1))
    except FOREIGN as error:
        raise ModelMismatch(f"model {name!r}: its parameters do not describe a classifier: {reason(error)}") from error
    expected = {INPUT: ("UINT8", [-1, *about.image_shape]), OUTPUT: ("FP32", [-1, len(about.labels)])}
    if tensors != expected:
        raise ModelMismatch(f"model {name!r}: expected the tensors {expected}, found {tensors}")
    return ServedModel(**vars(about), name=name, max_batch_size=limit, test_accuracy=accuracy, versions=versions)


def _reads_floats(metadata: dict[str, Any]) -> bool:
    """Whether the only input is (batch, 1 or 3 channels, height, width) in floats."""
    inputs = [each for each in metadata.get("inputs", ()) if isinstance(each, dict)]
    if len(inputs) != 1 or inputs[0].get("datatype") not in ("FP16", "FP32"):
        return False
    shape = [str(extent) for extent in inputs[0].get("shape", ())]
    return len(shape) == 4 and shape[1] in ("1", "3", "-1")
