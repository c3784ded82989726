"""One line each, with the file, address or model. Imports nothing of clients/."""


class ClientError(Exception):
    pass


class InvalidImage(ClientError):
    """The file or array is unusable."""


class BlankImage(InvalidImage):
    """No ink: one colour, or noise."""


class ServerUnavailable(ClientError):
    """The server is away, not Triton, or takes no requests now."""

    def __init__(self, message: str, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass  # a retry may help


class ServerBusy(ServerUnavailable):
    pass


class ModelNotFound(ClientError):
    """No model of this name, no model at all, or no name where models have different labels."""


class ModelNotReady(ClientError):
    """In the repository but not loaded."""


class ModelMismatch(ClientError):
    """No classifier as this project publishes them."""


class DeadlineExceeded(ClientError):
    pass


class ServerError(ClientError):
    """The server refused or failed."""


class CannotListen(Exception):
    """The page's address is taken, forbidden or not local."""
