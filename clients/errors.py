"""The errors of clients/: one line each, with the file, address or model. Imports nothing of clients/."""


class ClientError(Exception):
    pass


class InvalidImage(ClientError):
    """The file or array cannot be classified."""


class BlankImage(InvalidImage):
    """The picture has no ink: it is one colour, or noise."""


class ServerUnavailable(ClientError):
    """The server does not answer, is not Triton, or takes no requests now."""

    def __init__(self, message: str, may_pass: bool = False, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.may_pass = may_pass  # a retry may help
        self.retry_after_s = retry_after_s  # asked by the server


class ServerBusy(ServerUnavailable):
    """The server has too many requests."""


class ModelNotFound(ClientError):
    """No model of this name, or no model at all."""


class ModelNotReady(ClientError):
    """The model is in the repository but not loaded."""


class ModelMismatch(ClientError):
    """The model is no classifier of images as this project publishes them."""


class DeadlineExceeded(ClientError):
    pass


class ServerError(ClientError):
    """The server refused or failed, in its own words."""


class CannotListen(Exception):
    """The page's address is taken, forbidden or not of this machine."""
