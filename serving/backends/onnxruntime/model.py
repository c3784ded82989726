"""ONNX Runtime as a python-based Triton backend, which stands in where the native one is not installed.

In: the folder of a model (its configuration, `<version>/model.onnx`) and batches of requests. Out: one response a
request. It serves every model whose config.pbtxt says `backend: "onnxruntime"`, from the same repository as the native
backend. Incomplete configurations are not completed, they are refused.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import triton_python_backend_utils as pb_utils
from onnx_contract import Config, ModelRefused, check_features, check_tensors, session_options
from onnxruntime.capi import onnxruntime_pybind11_state

Array = npt.NDArray[Any]

# ONNX Runtime's errors have no base class of their own.
ORT_ERRORS: tuple[type[Exception], ...] = tuple(
    kind for kind in vars(onnxruntime_pybind11_state).values() if isinstance(kind, type) and issubclass(kind, Exception)
)


class WrongBatch(RuntimeError):
    """The model's output has another number of rows than its input."""


RUN_ERRORS: tuple[type[Exception], ...] = (*ORT_ERRORS, WrongBatch)


@dataclass(frozen=True)
class Call:
    """One request: its tensors, the outputs it asks for, and its rows (the first dimension of each tensor)."""

    inputs: dict[str, Array]
    requested: frozenset[str]
    rows: int


class TritonPythonModel:
    """One instance of one model; Triton's stub makes it and calls it from a single thread."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load and check the model; raises TritonModelException, which Triton gives as the reason of the refusal."""
        config = json.loads(args["model_config"])
        path = _model_file(args, config)
        try:
            check_features(config)
            self.session = _open_session(path, config, args)
            check_tensors(config, self.session)
        except ModelRefused as refusal:
            message = f"unable to load model '{args['model_name']}' ({path}): {refusal}"
            raise pb_utils.TritonModelException(message) from refusal
        self.batched: bool = config["max_batch_size"] > 0
        self.outputs: list[str] = [entry["name"] for entry in config["output"]]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response for each request, in order; requests of equal shapes run as one batch."""
        calls = [_call(request) for request in requests]
        groups: dict[Any, list[int]] = defaultdict(list)
        for position, call in enumerate(calls):
            groups[_shapes(call) if self.batched else position].append(position)
        responses: dict[int, Any] = {}
        for positions in groups.values():
            answers = self._answer([calls[position] for position in positions])
            responses.update(zip(positions, answers, strict=True))
        return [responses[position] for position in range(len(calls))]

    def finalize(self) -> None:
        """Free the session and the model's memory."""
        del self.session

    def _answer(self, calls: Sequence[Call]) -> list[Any]:
        """The responses of calls of equal shapes; where their batch fails, each is tried and answered alone."""
        try:
            results = self._run(calls)
        except RUN_ERRORS as error:
            if len(calls) > 1:
                return [response for call in calls for response in self._answer([call])]
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in result.items()])
            for result in results
        ]

    def _run(self, calls: Sequence[Call]) -> list[dict[str, Array]]:
        """The requested outputs of each call, from one run of the model on all of them."""
        names = [name for name in self.outputs if any(name in call.requested for call in calls)]
        if len(calls) == 1:
            feeds = calls[0].inputs
        else:
            feeds = {name: np.concatenate([call.inputs[name] for call in calls]) for name in calls[0].inputs}
        values: list[Array] = self.session.run(names, feeds)
        rows = [call.rows for call in calls]
        if self.batched:
            for name, value in zip(names, values, strict=True):
                if len(value) != sum(rows):
                    raise WrongBatch(f"output '{name}' has {len(value)} rows for a batch of {sum(rows)}")
        ends = np.cumsum(rows)[:-1]
        pieces = [np.split(value, ends) if len(calls) > 1 else [value] for value in values]
        return [
            {name: piece[i] for name, piece in zip(names, pieces, strict=True) if name in call.requested}
            for i, call in enumerate(calls)
        ]


def _model_file(args: dict[str, str], config: Config) -> Path:
    """The ONNX file, by its real name even where the server knows its repository by another."""
    name = config.get("default_model_filename") or "model.onnx"
    path = Path(args["model_repository"], args["model_version"], name).resolve()
    return path / "model.onnx" if path.is_dir() else path


def _open_session(path: Path, config: Config, args: dict[str, str]) -> ort.InferenceSession:
    """The session on the instance's device; raises ModelRefused for a missing or broken file."""
    if not path.is_file():
        raise ModelRefused("the model file does not exist")
    providers: list[Any] = ["CPUExecutionProvider"]
    if args["model_instance_kind"] == "GPU":
        if "CUDAExecutionProvider" in ort.get_available_providers():
            device = {"device_id": args["model_instance_device_id"]}
            providers.insert(0, ("CUDAExecutionProvider", device))
        else:
            pb_utils.Logger.log_warn(f"{path}: this ONNX Runtime has no CUDA, the model runs on the CPU")
    try:
        return ort.InferenceSession(path, session_options(config), providers)
    except ORT_ERRORS as error:
        raise ModelRefused(f"ONNX Runtime cannot read the model: {error}") from error


def _call(request: Any) -> Call:
    inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    rows = max((len(value) for value in inputs.values() if value.ndim), default=0)
    return Call(inputs, frozenset(request.requested_output_names()), rows)


def _shapes(call: Call) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The shape of each input without the batch dimension."""
    return tuple(sorted((name, value.shape[1:]) for name, value in call.inputs.items()))
