"""The clients' errors: a message is one line with the file, address or model. Imports nothing."""


class ClientError(Exception):
    pass


class InvalidImage(ClientError):
    """The file or array is unusable."""


class BlankImage(InvalidImage):
    """The picture has no ink: it is one colour, or noise."""


class ServerUnavailable(ClientError):
    """The server is away, not Triton, or takes no requests now."""

    def __init__(self, message: str, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass  # a retry may help


class ServerBusy(ServerUnavailable):
    pass


class ModelNotFound(ClientError):
    """The server has no model of this name, or none at all, or models of different labels and no name was given."""


class ModelNotReady(ClientError):
    """The model is in the repository but not loaded."""


class ModelMismatch(ClientError):
    """The model is no classifier that this project has published."""


class DeadlineExceeded(ClientError):
    pass


class ServerError(ClientError):
    """The server refused or failed."""


class CannotListen(Exception):
    """The page's address is taken, forbidden or not local."""
