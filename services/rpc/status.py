"""Errors on the wire: google.rpc.Status with the details that a program can act on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, QuotaFailure, RetryInfo
from google.rpc.status_pb2 import Status

DOMAIN = "octavo"

MESSAGE_BYTES = 1000
"""Of the longest message: it may quote a request, it travels three times, and clients take 8 KiB of trailers."""

CODES = {code.value[0]: code for code in grpc.StatusCode}
"""grpc.StatusCode by number."""


@dataclass(frozen=True, slots=True)
class ExceededQuota:
    """A limit that a call would exceed.

    Attributes:
        subject: whose it is, as of google.rpc.QuotaFailure.
        limit: its name.
        value: what it is.
    """

    subject: str
    limit: str
    value: int


@dataclass(slots=True, eq=False)  # not frozen: contextlib sets the traceback of what passes through
class RpcError(Exception):
    """A call that ends with a status.

    Attributes:
        reason: upper-case constant, for programs.
        field: the field of the request at fault, if one is.
        retry_after: seconds after which to try again; None: no advice.
        quota: the limit that is exceeded, if one is.
    """

    code: grpc.StatusCode
    message: str
    reason: str
    field: str = ""
    retry_after: float | None = None
    quota: ExceededQuota | None = None

    def __str__(self) -> str:
        return self.message


async def abort(context: grpc.aio.ServicerContext[Message, Message], error: RpcError) -> None:
    """Ends the call with the error's status and details. Raises, as grpc's own abort does."""
    error = replace(error, message=_shortened(error.message))
    status = Status(code=error.code.value[0], message=error.message)
    status.details.extend(_packed(_details(error)))
    details = (("grpc-status-details-bin", status.SerializeToString()),)
    try:
        await context.abort(error.code, error.message, trailing_metadata=details)
    except grpc.aio.InternalError as failure:
        # The call ended at this very moment: its client left, or its own deadline came. There is nobody to tell.
        raise asyncio.CancelledError from failure


def _shortened(message: str) -> str:
    data = message.encode("utf-8", "replace")
    if len(data) <= MESSAGE_BYTES:
        return message
    half = MESSAGE_BYTES // 2
    return f"{data[:half].decode('utf-8', 'ignore')} ... {data[-half:].decode('utf-8', 'ignore')}"


def _details(error: RpcError) -> list[Message]:
    details: list[Message] = [ErrorInfo(reason=error.reason, domain=DOMAIN)]
    if error.field:
        violation = BadRequest.FieldViolation(field=error.field, description=error.message, reason=error.reason)
        details.append(BadRequest(field_violations=[violation]))
    if error.retry_after is not None:
        delay = Duration()
        delay.FromNanoseconds(int(error.retry_after * 1e9))
        details.append(RetryInfo(retry_delay=delay))
    if error.quota is not None:
        details.append(QuotaFailure(violations=[_violation(error.quota, error.message)]))
    return details


def _violation(quota: ExceededQuota, description: str) -> QuotaFailure.Violation:
    return QuotaFailure.Violation(
        subject=quota.subject, description=description, quota_metric=quota.limit, quota_value=quota.value
    )


def _packed(details: Sequence[Message]) -> list[Any]:
    packed = []
    for detail in details:
        any_detail = Any()
        any_detail.Pack(detail)
        packed.append(any_detail)
    return packed
