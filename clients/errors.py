"""The clients' errors. Each message is a line that names the file, the address or the model. Imports nothing."""


class ClientError(Exception):
    """The base class."""


class InvalidImage(ClientError):
    """The file is no readable picture, or the array does not fit the model."""


class BlankImage(InvalidImage):
    """The picture has no ink: it has a single colour, or only noise."""


class ServerUnavailable(ClientError):
    """The server does not answer, is not Triton, or takes no requests now. `may_pass`: a retry may help."""

    def __init__(self, message: str, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class ServerBusy(ServerUnavailable):
    """The server refused the request because too many wait."""


class ModelNotFound(ClientError):
    """The server has no model of this name or no model at all, or its models differ and no name was given."""


class ModelNotReady(ClientError):
    """The model is in the repository but not loaded."""


class ModelMismatch(ClientError):
    """The model is no classifier that this project has published."""


class DeadlineExceeded(ClientError):
    """The server did not answer within `timeout_s`."""


class ServerError(ClientError):
    """The server refused the request or failed; the client does not retry."""


class CannotListen(Exception):
    """The page's address is taken, forbidden or not local."""
