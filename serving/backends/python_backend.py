"""A Triton backend in Python, which stands in for a missing native backend.

Engines subclass `PythonBackend` in `serving/backends/<engine>/model.py`, which Triton's stub imports.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import triton_python_backend_utils as pb_utils

from serving.backends.batching import Call, Engine, EqualShapes, Joining, RunFailed, answer
from serving.backends.config_check import Config, ModelRefused, check_features, check_tensors, parameter
from serving.backends.empty_axis_guard import guard_empty_axes
from serving.backends.length_padding import PARAMETER, LengthPadding, is_proved


def in_utf8(path: Path) -> str:
    """`path` for libraries and messages, which are UTF-8: the stub's Python decodes names of files as ASCII."""
    return os.fsencode(path).decode(errors="replace")


class PythonBackend(ABC):
    """A model's instance; Triton's stub calls it from one thread."""

    default_file: ClassVar[str]  # the native backend's default

    @abstractmethod
    def load(self, path: Path, config: Config, args: Mapping[str, str]) -> Engine:
        """Loads the model at `path` on the device of Triton's `args`; raises ModelRefused."""

    @staticmethod
    def auto_complete_config(model_config: Any) -> Any:
        """Lets Triton hand over requests of different lengths together, where `initialize` can join them.

        config.pbtxt must not declare the inputs ragged: the native backend would want one axis and not load the model.
        """
        config = model_config.as_dict()
        with suppress(ModelRefused):  # `initialize` says why
            if lengths := joined_lengths(config):
                for entry in config["input"]:
                    entry["allow_ragged_batch"] = entry["name"] in lengths.inputs
        return model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the model. Raises TritonModelException, which Triton shows as the reason."""
        config = json.loads(args["model_config"])
        name = config.get("default_model_filename") or self.default_file
        # errors name the real folder, even if the launcher renamed the repository
        version = Path(args["model_repository"], args["model_version"])
        path = Path(version, name).resolve()
        try:
            check_features(config)
            if not path.exists():
                raise ModelRefused("the model file does not exist")
            self.engine = guard_empty_axes(self.load(path, config, args), version)
            lengths = joined_lengths(config)
            check_tensors(config, self.engine.inputs, self.engine.outputs, lengths.inputs if lengths else ())
        except ModelRefused as refusal:
            message = f"unable to load model '{args['model_name']}' ({in_utf8(path)}): {refusal}"
            raise pb_utils.TritonModelException(message) from refusal
        proved = lengths if lengths and is_proved(lengths, version) else None
        self.joining: Joining | None = (proved or EqualShapes()) if config["max_batch_size"] > 0 else None
        self.outputs: list[str] = [entry["name"] for entry in config["output"]]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answers in order; an error concerns only its own request."""
        calls = [
            Call(
                {tensor.name(): tensor.as_numpy() for tensor in request.inputs()},
                frozenset(request.requested_output_names()),
            )
            for request in requests
        ]
        return [_response(each) for each in answer(self.engine, self.outputs, calls, self.joining)]

    def finalize(self) -> None:
        del self.engine


def joined_lengths(config: Config) -> LengthPadding | None:
    """What a publication wrote of a model's lengths, None without it. Raises ModelRefused for anything else."""
    text = parameter(config, PARAMETER)
    if text is None or not config["max_batch_size"]:
        return None
    try:
        lengths = LengthPadding.from_json(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelRefused(f"parameter '{PARAMETER}': expected what a publication writes, found {error}") from error
    tensors = {entry["name"] for entry in (*config["input"], *config["output"])}
    if missing := {*lengths.inputs, *lengths.outputs} - tensors:
        raise ModelRefused(f"parameter '{PARAMETER}': expected tensors of the model, found '{min(missing)}'")
    return lengths


def _response(answered: dict[str, Any] | RunFailed) -> Any:
    if isinstance(answered, RunFailed):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(answered)))
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in answered.items()])
