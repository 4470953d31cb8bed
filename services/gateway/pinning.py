"""Prompts that stay resident: computed like a request, asked about and let go by name."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc

from gateway.prepared import PreparedRequest
from octavo.v1 import common_pb2, inference_pb2
from services.gateway.backends import Backends
from services.gateway.codec import backend_error
from services.gateway.request_stream import RequestStream
from services.rpc.status import RpcError


class Pinning:
    """The pins of all tenants, as the KV manager keeps them."""

    def __init__(self, backends: Backends) -> None:
        self._backends = backends
        self._releases: set[asyncio.Task[None]] = set()

    async def pin(
        self, request: PreparedRequest, trace: common_pb2.TraceContext | None
    ) -> inference_pb2.PinPrefixResponse:
        """Has a prompt computed and kept. Where this is given up, whatever was pinned is let go.

        Raises:
            RpcError: it was refused, ended early, or is gone already.
        """
        assert request.pin is not None
        stream = self._backends.stream(request, trace)
        await self._backends.submit(stream)
        try:
            usage = await _usage(stream)
            pin = await self._find(request.tenant, request.pin.pin_id)
        except BaseException:
            # Nobody has learnt of the pin, so nobody else can let go of it.
            stream.close()
            self._release(request.tenant, request.pin.pin_id)
            raise
        stream.close()
        return inference_pb2.PinPrefixResponse(pin=pin, usage=usage)

    async def unpin(self, tenant: str, pin_id: str) -> None:
        """Lets go of a tenant's pin.

        Raises:
            RpcError: NOT_FOUND: the tenant has no such pin.
        """
        if not pin_id:
            message = "pin_id: must not be empty"
            raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, message, "INVALID_ARGUMENT", "pin_id")
        try:
            await self._backends.unpin(tenant, pin_id)
        except RpcError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
            raise RpcError(error.code, "pin_id: there is no such pin", "PIN_NOT_FOUND", "pin_id") from error

    async def pins(self, tenant: str) -> list[inference_pb2.Pin]:
        """A tenant's pins.

        Raises:
            RpcError: there is no KV manager.
        """
        return await self._backends.pins(tenant)

    async def _find(self, tenant: str, pin_id: str) -> inference_pb2.Pin:
        for pin in await self._backends.pins(tenant):
            if pin.pin_id == pin_id:
                return pin
        raise RpcError(grpc.StatusCode.NOT_FOUND, "ttl: the pin's time was over before it was told of", "PIN_NOT_FOUND")

    def _release(self, tenant: str, pin_id: str) -> None:
        task = asyncio.create_task(self._unpin_quietly(tenant, pin_id))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _unpin_quietly(self, tenant: str, pin_id: str) -> None:
        with suppress(RpcError):  # there was none, or the KV manager is gone and its pins with it
            await self._backends.unpin(tenant, pin_id)


async def _usage(stream: RequestStream) -> common_pb2.Usage:
    while True:
        end = (await stream.next()).end
        if end is None:
            continue
        if end.HasField("error"):
            raise backend_error(end.error)
        return end.usage
