"""`/metrics`, for Prometheus."""

from __future__ import annotations

import grpc
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from services.gateway.http.requests import metadata_of
from services.gateway.viewers import Viewers
from services.rpc.status import RpcError
from services.telemetry.metrics import Exposition
from services.telemetry.metrics_app import metrics_response


def metrics_routes(exposition: Exposition, viewers: Viewers) -> list[BaseRoute]:
    """The metrics, which tell of all tenants: where there are any, only the operator may read them."""

    async def metrics(request: Request) -> Response:
        if not viewers.identify(metadata_of(request)).is_operator:
            message = "metrics are for the operator: the call needs the operator's key"
            raise RpcError(grpc.StatusCode.PERMISSION_DENIED, message, "OPERATOR_KEY_NEEDED")
        return await metrics_response(exposition, request)

    return [Route("/metrics", metrics)]
