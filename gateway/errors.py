"""What the gateway core raises."""

MAX_MESSAGE_LENGTH = 300
"""Characters of a message, which may quote what the client sent: errors travel in headers, and those are limited."""


class RequestError(Exception):
    """A request that cannot be served as it is.

    Attributes:
        field: The field at fault, dotted as in the protos, for example ``sampling.temperature``.
        message: What is wrong with it, with the limit where there is one.
    """

    def __init__(self, field: str, message: str) -> None:
        if len(message) > MAX_MESSAGE_LENGTH:
            message = message[: MAX_MESSAGE_LENGTH - 3] + "..."
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class InvalidArgument(RequestError):
    """A field's value is not acceptable."""


class NotFound(RequestError):
    """A field names something that does not exist here."""


class PermissionDenied(RequestError):
    """A field asks for something that this caller may not have."""


class ScopeTooWide(PermissionDenied):
    """A field asks for a wider cache scope than the caller's key allows."""


class Unauthenticated(Exception):
    """It is not known who is asking."""


class TokenizerError(Exception):
    """A tokenizer that cannot be used: a broken file or a kind that is not supported."""


class TokenizerNotFound(TokenizerError):
    """No tokenizer at the given place."""


class PositionGap(Exception):
    """Tokens of a sequence are missing: the stream that carries them lost some."""
