"""The warm-up in config.pbtxt: requests that a server answers before users ask, for memory and GPU kernels.

In: a configuration, and batch sizes or a version's sample. Out: entries of the warm-up, and the files that they name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.sample import Arrays
from export.publishing.new_config import WARMUP_NAME, engine_of, image_shape
from models.networks.config import INPUT_NAME

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


def zeros(message: pb.ModelConfig, size: int) -> pb.ModelWarmup:
    """A batch of black images, for a network of this project."""
    from tritonclient.grpc import model_config_pb2 as pb

    whole = engine_of(message) == "openvino"  # its dims include the batch
    dims = [size, *image_shape(message)] if whole else image_shape(message)
    image = pb.ModelWarmup.Input(data_type=pb.TYPE_UINT8, dims=dims, zero_data=True)
    return pb.ModelWarmup(name=f"batch {size}", batch_size=1 if whole else size, inputs={INPUT_NAME: image})


def name_samples(message: pb.ModelConfig, number: int, inputs: Arrays | None) -> None:
    """Names the files of version `number` in the warm-up; None: it has no sample."""
    files = warm_up_files(message, number, inputs) if inputs is not None else {}
    for warmup in message.model_warmup:
        if warmup.name != WARMUP_NAME:
            continue  # added by the operator
        for given, (file, array) in zip(message.input, files.items(), strict=False):
            entry = warmup.inputs[given.name]
            entry.data_type, entry.input_data_file = given.data_type, file
            entry.dims[:] = (array.shape[1:] if message.max_batch_size else array.shape) or [1]


def warm_up_files(message: pb.ModelConfig, number: int, inputs: Arrays) -> Arrays:
    """The files with a version's inputs that `message` names, in its order; none without a warm-up by samples."""
    if not any(warmup.name == WARMUP_NAME for warmup in message.model_warmup):
        return {}
    files = {}
    for index, given in enumerate(message.input):
        file = f"{number}_{index}_" + "".join(letter if letter.isalnum() else "_" for letter in given.name)
        files[file] = inputs[given.name][:1] if message.max_batch_size else inputs[given.name]
    return files
