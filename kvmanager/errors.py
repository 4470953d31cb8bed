"""Why a request is refused or ended early."""

from __future__ import annotations


class RequestError(Exception):
    """A request can't be served. Each kind becomes one status on the wire."""


class InvalidRequest(RequestError):
    """The request can never be served as it is.

    Attributes:
        field: the field at fault, named as in the public request.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class QueueFull(RequestError):
    """Too many requests wait already.

    Attributes:
        retry_after: seconds in which there will be room again, as far as can be told.
        tenant: whose limit it is; None: that of all together.
    """

    def __init__(self, message: str, retry_after: float, tenant: str | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.tenant = tenant


class PinRefused(RequestError):
    """The pin would leave too little memory for requests that are here."""


class DeadlineExceeded(RequestError):
    """The request's time is over."""


class ExecutorFailed(RequestError):
    """Executors were lost again and again while the request ran, and it got no token in between."""


class OutOfOrder(Exception):
    """An executor's result is not the one that is due. The stream to it has to be set up anew."""
