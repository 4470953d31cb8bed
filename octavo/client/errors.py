"""How a call fails."""

from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

# What gRPC itself says of a connection that could not be made, or that broke.
_OF_THE_CONNECTION = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED}


class OctavoError(Exception):
    """A call that failed.

    Attributes:
        status: The gRPC status code.
        message: What the server said, or gRPC where there was no server.
        field: The field of the request that is at fault, or "".
        reason: Upper-case constant for programs (``google.rpc.ErrorInfo``), or "".
        retry_after: Seconds after which another try is worth it, or None.
        from_server: Whether a server answered. False: it was not reached, or the connection broke.
    """

    def __init__(
        self,
        status: grpc.StatusCode,
        message: str,
        *,
        field: str = "",
        reason: str = "",
        retry_after: float | None = None,
        from_server: bool = True,
    ) -> None:
        where = f"{field}: " if field and not message.startswith(f"{field}:") else ""
        super().__init__(f"{status.name}: {where}{message}")
        self.status = status
        self.message = message
        self.field = field
        self.reason = reason
        self.retry_after = retry_after
        self.from_server = from_server

    @classmethod
    def from_rpc(cls, error: grpc.RpcError) -> "OctavoError":
        """Reads a failed call of either kind, and the ``google.rpc.Status`` that came with it."""
        call: Any = error
        status, message = call.code(), call.details() or ""
        rich = rpc_status.from_call(call)
        if rich is None:
            # A server that is there but cannot serve says so in a google.rpc.Status. gRPC's own errors have none.
            return cls(status, message, from_server=status not in _OF_THE_CONNECTION)
        field = reason = ""
        retry_after = None
        for detail in rich.details:
            if detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
                bad_request = error_details_pb2.BadRequest()
                detail.Unpack(bad_request)
                field = next((violation.field for violation in bad_request.field_violations), "")
            elif detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo()
                detail.Unpack(info)
                reason = info.reason
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                retry = error_details_pb2.RetryInfo()
                detail.Unpack(retry)
                retry_after = retry.retry_delay.ToTimedelta().total_seconds()
        return cls(status, rich.message or message, field=field, reason=reason, retry_after=retry_after)
