"""A Triton backend in Python, in place of a native backend that the server lacks.

`serving/backends/<engine>/model.py`, which Triton's stub process imports, subclasses `PythonBackend` for its engine.
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
    """`path` as text for libraries and messages, in UTF-8: the stub's Python decodes file names as ASCII."""
    return os.fsencode(path).decode(errors="replace")


class PythonBackend(ABC):
    """An instance of a model; Triton's stub calls its methods from a single thread."""

    default_file: ClassVar[str]  # the file name that the native backend reads by default

    @abstractmethod
    def load(self, path: Path, config: Config, args: Mapping[str, str]) -> Engine:
        """Loads the model at `path` on the device that Triton's `args` name. Raises ModelRefused."""

    @staticmethod
    def auto_complete_config(model_config: Any) -> Any:
        """Declares the inputs in `joined_lengths` ragged, so that Triton batches requests of different lengths.

        config.pbtxt itself must not declare this: a native backend takes ragged inputs of one axis only, and would not
        load the model.
        """
        config = model_config.as_dict()
        with suppress(ModelRefused):  # `initialize` raises it again, where Triton shows the reason
            if lengths := joined_lengths(config):
                for entry in config["input"]:
                    entry["allow_ragged_batch"] = entry["name"] in lengths.inputs
        return model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the model. Raises TritonModelException, which Triton shows as the reason."""
        config = json.loads(args["model_config"])
        filename = config.get("default_model_filename") or self.default_file
        version_dir = Path(args["model_repository"], args["model_version"])
        path = Path(version_dir, filename).resolve()  # errors name the real folder, not the launcher's name for it
        try:
            check_features(config)
            if not path.exists():
                raise ModelRefused("the model file does not exist")
            self.engine = guard_empty_axes(self.load(path, config, args), version_dir)
            lengths = joined_lengths(config)
            check_tensors(config, self.engine.inputs, self.engine.outputs, lengths.inputs if lengths else ())
        except ModelRefused as refusal:
            message = f"unable to load model '{args['model_name']}' ({in_utf8(path)}): {refusal}"
            raise pb_utils.TritonModelException(message) from refusal
        length_padding = lengths if lengths and is_proved(lengths, version_dir) else None
        self.joining: Joining | None = (length_padding or EqualShapes()) if config["max_batch_size"] > 0 else None
        self.outputs: list[str] = [entry["name"] for entry in config["output"]]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Triton's responses in the order of the requests. An error concerns only the request that causes it."""
        calls = [
            Call(
                {tensor.name(): tensor.as_numpy() for tensor in request.inputs()},
                frozenset(request.requested_output_names()),
            )
            for request in requests
        ]
        return [_response(result) for result in answer(self.engine, self.outputs, calls, self.joining)]

    def finalize(self) -> None:
        del self.engine


def joined_lengths(config: Config) -> LengthPadding | None:
    """Reads the parameter `joined_lengths`; None without it or without batches. Raises ModelRefused."""
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


def _response(result: dict[str, Any] | RunFailed) -> Any:
    if isinstance(result, RunFailed):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(result)))
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in result.items()])
