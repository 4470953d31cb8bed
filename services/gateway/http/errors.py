"""Errors as HTTP says them: a status, and the body that OpenAI's clients read."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import grpc
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ExceptionHandler

from services.rpc.status import RpcError

log = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499
"""Nobody reads it: the client is gone."""

_STATUS_OF_CODE = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.CANCELLED: CLIENT_CLOSED_REQUEST,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
_TYPE_OF_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    409: "conflict_error",
    429: "rate_limit_error",
}


class HttpError(Exception):
    """A call that ends with an HTTP status.

    Attributes:
        code: lower-case constant, for programs.
        param: the field of the request at fault, if one is.
        retry_after: seconds after which to try again; None: no advice.
    """

    def __init__(
        self, status: int, message: str, code: str, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after

    @classmethod
    def of(cls, error: RpcError) -> HttpError:
        """The same error, as HTTP says it."""
        status = _STATUS_OF_CODE.get(error.code, 500)
        return cls(status, error.message, error.reason.lower(), error.field or None, error.retry_after)

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's error body."""
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _TYPE_OF_STATUS.get(self.status, default)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """What the status brings along."""
        headers = {}
        if self.retry_after is not None:
            # Whole seconds for everybody, and milliseconds for OpenAI's clients.
            headers["retry-after"] = str(math.ceil(self.retry_after))
            headers["retry-after-ms"] = str(math.ceil(self.retry_after * 1000))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers

    def response(self) -> Response:
        """The whole answer."""
        return JSONResponse(self.body, self.status, self.headers)


def exception_handlers() -> Mapping[Any, ExceptionHandler]:
    """For Starlette: whatever a route raises is answered in the same shape."""
    return {
        RpcError: _answer_rpc_error,
        HttpError: _answer_http_error,
        HTTPException: _answer_http_exception,
        Exception: _answer_unexpected,
    }


async def _answer_rpc_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RpcError)
    return HttpError.of(error).response()


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return error.response()


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """What Starlette finds: there is no such path, or it knows no such method."""
    assert isinstance(error, HTTPException)
    code = {404: "path_not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    message = f"{error.detail}: {request.method} {request.url.path}"
    response = HttpError(error.status_code, message, code).response()
    response.headers.update(error.headers or {})
    return response


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    """Starlette raises it again after this, and uvicorn logs it."""
    return HttpError(500, "an unexpected error; the gateway's log has it", "internal").response()
