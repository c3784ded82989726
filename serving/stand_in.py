"""A python-based Triton backend, which stands in where the native one of an engine is not installed.

In: the folder of a model (its configuration, `<version>/<file>`) and batches of requests. Out: one response a request.
An engine adds how it loads a file: `serving/backends/<engine>/model.py`, which Triton's stub imports for every model
whose config.pbtxt names that backend. Incomplete configurations are not completed, they are refused.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import triton_python_backend_utils as pb_utils

from serving.batching import Call, Engine, RunFailed, answer
from serving.contract import Config, ModelRefused, check_features, check_tensors


class StandIn(ABC):
    """One instance of one model; Triton's stub makes it and calls it from a single thread."""

    default_file: ClassVar[str]  # what the native backend loads unless default_model_filename says otherwise

    @abstractmethod
    def load(self, path: Path, config: Config, args: Mapping[str, str]) -> Engine:
        """The model at `path`, on the instance that Triton's `args` describe; raises ModelRefused."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load and check the model; raises TritonModelException, which Triton gives as the reason of the refusal."""
        config = json.loads(args["model_config"])
        name = config.get("default_model_filename") or self.default_file
        # Its real name, even where the server knows its repository by another
        path = Path(args["model_repository"], args["model_version"], name).resolve()
        try:
            check_features(config)
            if not path.exists():
                raise ModelRefused("the model file does not exist")
            self.engine = self.load(path, config, args)
            check_tensors(config, self.engine.inputs, self.engine.outputs)
        except ModelRefused as refusal:
            message = f"unable to load model '{args['model_name']}' ({path}): {refusal}"
            raise pb_utils.TritonModelException(message) from refusal
        self.batched: bool = config["max_batch_size"] > 0
        self.outputs: list[str] = [entry["name"] for entry in config["output"]]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response for each request, in order; an error is the response of its own request alone."""
        calls = [
            Call(
                {tensor.name(): tensor.as_numpy() for tensor in request.inputs()},
                frozenset(request.requested_output_names()),
            )
            for request in requests
        ]
        return [_response(each) for each in answer(self.engine, self.outputs, calls, self.batched)]

    def finalize(self) -> None:
        """Free the model and what the engine holds for it."""
        del self.engine


def _response(answered: dict[str, Any] | RunFailed) -> Any:
    if isinstance(answered, RunFailed):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(answered)))
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in answered.items()])
