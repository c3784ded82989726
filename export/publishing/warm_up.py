"""The warm-up in config.pbtxt: requests that a server answers at loading, to allocate memory and load GPU kernels.

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
    """A warm-up with a batch of `size` black images, for a network that clients can ask for classes."""
    from tritonclient.grpc import model_config_pb2 as pb

    batch_in_dims = engine_of(message) == "openvino"
    dims = [size, *image_shape(message)] if batch_in_dims else image_shape(message)
    image = pb.ModelWarmup.Input(data_type=pb.TYPE_UINT8, dims=dims, zero_data=True)
    return pb.ModelWarmup(name=f"batch {size}", batch_size=1 if batch_in_dims else size, inputs={INPUT_NAME: image})


def name_samples(message: pb.ModelConfig, number: int, inputs: Arrays | None) -> None:
    """Makes the warm-up read the files of version `number`. `inputs`: of the version's sample; None: it has none."""
    files = warm_up_files(message, number, inputs) if inputs is not None else {}
    for warmup in message.model_warmup:
        if warmup.name != WARMUP_NAME:
            continue  # added by the operator
        for tensor, (file, array) in zip(message.input, files.items(), strict=False):
            entry = warmup.inputs[tensor.name]
            entry.data_type, entry.input_data_file = tensor.data_type, file
            entry.dims[:] = (array.shape[1:] if message.max_batch_size else array.shape) or [1]


def warm_up_files(message: pb.ModelConfig, number: int, inputs: Arrays) -> Arrays:
    """Name of a file in the model's warm-up folder -> the array to write, in the order of the model's inputs.

    `inputs`: of the sample of version `number`. Empty if the model has no warm-up by samples.
    """
    if not any(warmup.name == WARMUP_NAME for warmup in message.model_warmup):
        return {}
    files = {}
    for index, tensor in enumerate(message.input):
        file = f"{number}_{index}_" + "".join(letter if letter.isalnum() else "_" for letter in tensor.name)
        files[file] = inputs[tensor.name][:1] if message.max_batch_size else inputs[tensor.name]
    return files
