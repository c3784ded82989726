"""What can go wrong between a client and a server; each text is one line that names the address or the model.

The errors about images, and ClientError above them all, stand in `clients.decode`, which knows no server.
"""

from clients.decode import ClientError


class ServerUnavailable(ClientError):
    """Nothing answers at the address, what answers is no Triton server, or it takes no requests now."""

    def __init__(self, message: str, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass  # whether it is worth trying again


class ModelNotFound(ClientError):
    """The server has no model of this name, or none at all."""


class ModelNotReady(ClientError):
    """The model is in the repository, and the server could not load it or has not yet."""


class ModelMismatch(ClientError):
    """The model is served, and is no classifier of images as this project publishes them."""


class DeadlineExceeded(ClientError):
    """The server did not answer in time."""


class ServerError(ClientError):
    """The server refused or failed; the text holds its own words."""
