"""Who may call an inner server: the certificate's roles decide, before a servicer sees the call."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc

from services.rpc.roles import Role, roles_in
from services.rpc.status import RpcError, abort

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class OnlyRoles(grpc.aio.ServerInterceptor):  # type: ignore[type-arg] # only the stubs' has any
    """Refuses calls of services from whoever has none of the roles.

    Args:
        services: full names; other services, such as health, are anybody's.
        roles: who may call them.
    """

    def __init__(self, services: Collection[str], roles: Collection[Role]) -> None:
        self._services = services
        self._roles = roles

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        service = handler_call_details.method.rpartition("/")[0].removeprefix("/")
        # There is no handler for a method that is not known.
        if not handler or service not in self._services:
            return handler
        return self._guarded(handler)

    def _guarded(self, handler: Handler) -> Handler:
        kind = f"{_arity(handler.request_streaming)}_{_arity(handler.response_streaming)}"
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        guarded: Handler = make(
            self._checked(getattr(handler, kind)), handler.request_deserializer, handler.response_serializer
        )
        return guarded

    def _checked(self, method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            await self._check(context)
            async with aclosing(method(request, context)) as responses:
                async for response in responses:
                    yield response

        async def call(request: Any, context: Any) -> Any:
            await self._check(context)
            return await method(request, context)

        return stream if inspect.isasyncgenfunction(method) else call

    async def _check(self, context: Any) -> None:
        names = context.auth_context().get("x509_subject_alternative_name", ())
        roles = roles_in([name.decode("utf-8", "replace") for name in names])
        if not roles:
            message = "the caller's certificate names no role"
            await abort(context, RpcError(grpc.StatusCode.UNAUTHENTICATED, message, "NO_ROLE"))
        if not set(roles) & set(self._roles):
            message = f"called as {', '.join(roles)}; only {', '.join(self._roles)} may"
            await abort(context, RpcError(grpc.StatusCode.PERMISSION_DENIED, message, "WRONG_ROLE"))


def _arity(is_stream: bool) -> str:
    return "stream" if is_stream else "unary"
