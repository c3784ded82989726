"""Lists a server's models and chooses a model for a client. A model without a description is listed, never chosen."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from clients.errors import ModelMismatch, ModelNotFound, ModelNotReady, ServerError
from clients.model_description import DESCRIPTION_ERRORS, Description, describe
from clients.one_server import Server
from clients.retry_and_failover import Connection
from common.files import reason
from common.preprocessing_settings import INPUT_NAME, OUTPUT_NAME

_EMPTY_REPOSITORY = "the repository has nothing; publish a model, such as by vitbn export, and promote it"
_PROMOTE_HINT = "if it is published: vitbn repository promote {} {}"


@dataclass(frozen=True)
class ServedModel(Description):
    """A ready model: its description, and what the server says of it."""

    name: str
    max_batch_size: int  # most images in a request
    test_accuracy: float | None  # between 0 and 1
    versions: tuple[str, ...]  # the ready versions; the last answers requests


@dataclass(frozen=True)
class ListedModel:
    """`model` is None if the model is not ready or has no description; `reason` says why."""

    name: str
    model: ServedModel | None
    reason: str = ""


async def choose_model(connection: Connection) -> ServedModel:
    """The most accurate of the ready models. Raises ModelNotFound if no model is ready or the caller must name it."""
    index = await connection.ask(Server.models)
    ready = sorted({entry["name"] for entry in index if _is_ready(entry)})
    if not ready:
        names = ", ".join(sorted({entry["name"] for entry in index}))
        contents = f"the repository has {names}{_how_to_serve(index)}" if index else _EMPTY_REPOSITORY
        raise ModelNotFound(f"no model is ready at {connection.url}; {contents}")
    listed = await asyncio.gather(*(_list_model(connection, name) for name in ready)) if len(ready) > 1 else []
    candidates = [entry.model for entry in listed if entry.model is not None]
    if not candidates:
        return await _describe(connection, ready[0])
    check_choice(candidates, connection.url)
    return most_accurate(candidates)


def check_choice(models: Sequence[ServedModel], url: str) -> None:
    """Raises ModelNotFound if the caller must name the model.

    The models have different labels, or the accuracy of a model from elsewhere is unknown. `url`: for the message.
    """
    if len({frozenset(model.labels) for model in models}) > 1:
        difference = "different labels"
    elif len(models) > 1 and any(model.framing is not None and model.test_accuracy is None for model in models):
        difference = "models of unknown accuracy"
    else:
        return
    names = ", ".join(map(_with_labels, models))
    raise ModelNotFound(f"expected the name of a model (--model), found {difference} at {url}: {names}")


def _with_labels(model: ServedModel) -> str:
    return f"{model.name} ({' '.join(model.labels[:3])}{' …' if len(model.labels) > 3 else ''})"


def most_accurate(models: Sequence[ServedModel]) -> ServedModel:
    """The most accurate transformer, else the most accurate CNN; the first of several."""
    return max(models, key=lambda model: (model.family != "cnn", model.test_accuracy or 0.0))


async def find_model(connection: Connection, name: str) -> ServedModel:
    """Raises ModelNotFound, ModelNotReady, and ModelMismatch for a model without a description."""
    if name and "/" not in name and await connection.ask(Server.ready, name):  # a slash would change the URL's path
        return await _describe(connection, name)
    index = await connection.ask(Server.models)
    entries = [entry for entry in index if entry["name"] == name]
    if not entries:
        raise ModelNotFound(f"model {name!r} is not at {connection.url}; {await _suggestions(connection, name)}")
    if any(map(_is_ready, entries)):  # the first server failed, and another sent the index
        return await _describe(connection, name)
    raise ModelNotReady(f"model {name!r} is not ready at {connection.url}: {_state(entries)}{_how_to_serve(entries)}")


async def _suggestions(connection: Connection, name: str) -> str:
    """The server's models with their labels; the model with nearly this name, or with a label of this name.

    Also tells how to serve `name`, which may be unloaded: without a key a server lists only loaded models.
    """
    listed = await list_all(connection)
    there = ", ".join(_with_labels(entry.model) if entry.model else entry.name for entry in listed) or "nothing"
    similar = get_close_matches(name, [entry.name for entry in listed], 1)
    similar += [entry.name for entry in listed if entry.model and name.lower() in map(str.lower, entry.model.labels)]
    question = f"did you mean {similar[0]!r}? " if similar else ""
    return f"there: {there}; {question}{_PROMOTE_HINT.format(name, 'VERSION')}"


async def list_all(connection: Connection) -> list[ListedModel]:
    """All models in the server's index, sorted by name."""
    index = await connection.ask(Server.models)
    ready = {entry["name"] for entry in index if _is_ready(entry)}
    not_ready = [
        ListedModel(name, None, _state([entry for entry in index if entry["name"] == name]))
        for name in {entry["name"] for entry in index} - ready
    ]
    described = await asyncio.gather(*(_list_model(connection, name) for name in ready))
    return sorted([*not_ready, *described], key=lambda entry: entry.name)


async def _list_model(connection: Connection, name: str) -> ListedModel:
    try:
        return ListedModel(name, await _describe(connection, name))
    except (ModelMismatch, ModelNotFound, ServerError) as refusal:
        return ListedModel(name, None, str(refusal))


def _is_ready(entry: dict[str, Any]) -> bool:
    return bool(entry.get("state") == "READY")


def _state(entries: list[dict[str, Any]]) -> str:
    """The state and its reason, of the first version in a model's index entries."""
    reason = " ".join(str(entries[0].get("reason", "")).split())
    return f"{entries[0].get('state') or 'not loaded'}{reason and ', ' + reason}"


def _how_to_serve(entries: list[dict[str, Any]]) -> str:
    """The command that serves the last unloaded version in an index, which lists it without a state; else empty."""
    unloaded = [entry for entry in entries if not entry.get("state")]
    if not unloaded:
        return ""
    name, version = unloaded[-1]["name"], unloaded[-1].get("version") or "VERSION"
    return f"; {_PROMOTE_HINT.format(name, version)}"


async def _describe(connection: Connection, name: str) -> ServedModel:
    """Raises ModelMismatch for a model that this project has not published as a classifier."""
    metadata, config = await asyncio.gather(connection.ask(Server.metadata, name), connection.ask(Server.config, name))
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
        description = describe(parameters)
        accuracy = float(parameters["test_accuracy"]) if "test_accuracy" in parameters else None
        # 0: the server does not batch, and a parameter limits the images of a request.
        limit = int(config.get("max_batch_size", 0)) or int(parameters.get("max_images", 1))
    except DESCRIPTION_ERRORS as error:
        raise ModelMismatch(f"model {name!r}: its parameters do not describe a classifier: {reason(error)}") from error
    expected = {
        INPUT_NAME: ("UINT8", [-1, *description.image_shape]),
        OUTPUT_NAME: ("FP32", [-1, len(description.labels)]),
    }
    if tensors != expected:
        raise ModelMismatch(f"model {name!r}: expected the tensors {expected}, found {tensors}")
    return ServedModel(**vars(description), name=name, max_batch_size=limit, test_accuracy=accuracy, versions=versions)


def _reads_floats(metadata: dict[str, Any]) -> bool:
    """Whether the only input is (batch, 1 or 3 channels, height, width) in floats."""
    inputs = [tensor for tensor in metadata.get("inputs", ()) if isinstance(tensor, dict)]
    if len(inputs) != 1 or inputs[0].get("datatype") not in ("FP16", "FP32"):
        return False
    shape = [str(extent) for extent in inputs[0].get("shape", ())]
    return len(shape) == 4 and shape[1] in ("1", "3", "-1")
