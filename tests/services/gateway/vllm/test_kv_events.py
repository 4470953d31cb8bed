"""KV events of one and of several KV managers, as a router hears them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from octavo.client import OctavoError
from octavo.v1 import common_pb2, kvmanager_pb2, kvmanager_pb2_grpc
from services.config import GatewayConfig
from services.gateway.server import GatewayService
from services.gateway.vllm.event_stream import block_hash
from services.rpc.columns import pack_int32
from services.rpc.server import Context
from tests.ports import free_port
from tests.services.gateway.gateway_bench import gateway, one_answer, save_bytes_tokenizer
from tests.services.scripted_kvmanager import ScriptedKVManager, eventually, serving

SUBSCRIBE = common.SubscribeKvEventsRequest()
PATIENCE = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bytes_tokenizer(tmp_path_factory.mktemp("model"))


def name(number: int) -> bytes:
    return bytes([number]) * 32


def stored(number: int, parent: int = 0) -> kvmanager_pb2.KvEvent:
    block = kvmanager_pb2.BlockStored(
        identity=name(number),
        parent_identity=name(parent) if parent else b"",
        token_ids=pack_int32([number] * 4),
        tier=common_pb2.TIER_DEVICE,
    )
    return kvmanager_pb2.KvEvent(stored=block)


class KVManagerWithEvents(ScriptedKVManager):
    """Tells of the blocks in `cached` first, and then of what is put in `news`.

    Attributes:
        subscribers: how many there are.
    """

    def __init__(self, executor: str, *cached: kvmanager_pb2.KvEvent) -> None:
        super().__init__(one_answer)
        self._executor = executor
        self.cached = list(cached)
        self.news: asyncio.Queue[tuple[int, kvmanager_pb2.KvEvent] | None] = asyncio.Queue()
        self.subscribers = 0

    async def SubscribeKvEvents(
        self, request: kvmanager_pb2.SubscribeKvEventsRequest, context: Context
    ) -> AsyncIterator[kvmanager_pb2.SubscribeKvEventsResponse]:
        assert request.current_blocks_first
        self.subscribers += 1
        try:
            yield self._message(5, *self.cached, cached_before=True)
            while (new := await self.news.get()) is not None:
                yield self._message(*new)
        finally:
            self.subscribers -= 1

    def _message(
        self, number: int, *events: kvmanager_pb2.KvEvent, cached_before: bool = False
    ) -> kvmanager_pb2.SubscribeKvEventsResponse:
        return kvmanager_pb2.SubscribeKvEventsResponse(
            sequence_number=number, executor=self._executor, events=events, cached_before=cached_before
        )


class Reader:
    """Follows a subscription."""

    def __init__(self, channel: grpc.aio.Channel, **arguments: Any) -> None:
        stub: Any = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        self.call = stub.SubscribeKvEvents(SUBSCRIBE, **arguments)
        self.held: set[int] = set()
        self.num_cleared = 0

    async def until(self, *numbers: int) -> None:
        """Returns when these blocks are held, and no others."""
        wanted = {block_hash(name(number)) for number in numbers}
        while True:
            batch = await asyncio.wait_for(self.call.read(), PATIENCE)
            for event in batch.events:
                if event.HasField("cleared"):
                    self.num_cleared += 1
                    self.held.clear()
                self.held |= {block.block_hash for block in event.stored.blocks}
                self.held -= set(event.removed.block_hashes)
            if self.held == wanted:
                return


@asynccontextmanager
async def reading(address: str, **arguments: Any) -> AsyncIterator[Reader]:
    async with grpc.aio.insecure_channel(address) as channel:
        reader = Reader(channel, **arguments)
        yield reader
        reader.call.cancel()


async def test_a_subscriber_hears_what_is_cached_and_what_happens(model: Path) -> None:
    kvmanager = KVManagerWithEvents("one", stored(1), stored(2, 1))
    async with serving(kvmanager) as inner, gateway(model, kvmanager, inner) as bench:
        async with reading(bench.address) as reader:
            await reader.until(1, 2)
            kvmanager.news.put_nowait((5, stored(3, 2)))
            await reader.until(1, 2, 3)
            removed = kvmanager_pb2.BlockRemoved(identity=name(2), tier=common_pb2.TIER_DEVICE)
            kvmanager.news.put_nowait((6, kvmanager_pb2.KvEvent(removed=removed)))
            await reader.until(1, 3)
            assert reader.num_cleared == 1
        await eventually(lambda: not kvmanager.subscribers)


async def test_what_was_missed_is_made_up_for(model: Path) -> None:
    """Numbers are missing, or the KV manager ends the stream: all begins anew."""
    kvmanager = KVManagerWithEvents("one", stored(1))
    async with (
        serving(kvmanager) as inner,
        gateway(model, kvmanager, inner) as bench,
        reading(bench.address) as reader,
    ):
        await reader.until(1)
        kvmanager.cached = [stored(2)]
        kvmanager.news.put_nowait((7, stored(4)))
        await reader.until(2)
        kvmanager.cached = [stored(3)]
        kvmanager.news.put_nowait(None)
        await reader.until(3)
        assert reader.num_cleared == 3


async def test_another_kv_manager_tells_what_it_has(model: Path) -> None:
    port = free_port()
    first, second = KVManagerWithEvents("one", stored(1)), KVManagerWithEvents("one", stored(2))
    servers = []
    for kvmanager in (first, second):
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        kvmanager_pb2_grpc.add_KVManagerServiceServicer_to_server(kvmanager, server)
        servers.append(server)
    servers[0].add_insecure_port(f"127.0.0.1:{port}")
    await servers[0].start()
    async with gateway(model, first, f"127.0.0.1:{port}") as bench, reading(bench.address) as reader:
        await reader.until(1)
        await servers[0].stop(0)
        await reader.until()
        servers[1].add_insecure_port(f"127.0.0.1:{port}")
        await servers[1].start()
        await reader.until(2)
        await servers[1].stop(0)


async def test_all_groups_are_one_engine(model: Path) -> None:
    """What one of them loses, the others keep."""
    one, two = KVManagerWithEvents("x", stored(1)), KVManagerWithEvents("x", stored(2))
    async with (
        serving(one) as first,
        serving(two) as second,
        gateway(model, one, f"{first};{second}") as bench,
        reading(bench.address) as reader,
    ):
        await reader.until(1, 2)
        two.cached = []
        two.news.put_nowait(None)
        await reader.until(1)
        assert reader.num_cleared == 1


async def test_initial_metadata_comes_though_there_is_no_kv_manager(model: Path) -> None:
    config = GatewayConfig(model=str(model), port=free_port(), http_port=0, kvmanager=f"127.0.0.1:{free_port()}")
    service = GatewayService(config)
    await service.start()
    running = asyncio.ensure_future(service.run())
    async with reading(config.address) as reader:
        await asyncio.wait_for(reader.call.initial_metadata(), PATIENCE)
        await reader.until()
    await service.stop()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_who_comes_back_begins_anew(model: Path) -> None:
    kvmanager = KVManagerWithEvents("one")
    async with (
        serving(kvmanager) as inner,
        gateway(model, kvmanager, inner) as bench,
        grpc.aio.insecure_channel(bench.address) as channel,
    ):
        stub: Any = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.SubscribeKvEvents(common.SubscribeKvEventsRequest(start_sequence_number=7)).read()
    error = OctavoError.from_rpc(refused.value)
    assert (error.status, error.field) == (grpc.StatusCode.OUT_OF_RANGE, "start_sequence_number")


async def test_no_tenant_hears_what_others_ask_but_the_operator_does(model: Path, tmp_path: Path) -> None:
    key_file = tmp_path / "operator.key"
    key_file.write_text("a-key-of-the-operator-s-own-0123456789")
    kvmanager = KVManagerWithEvents("one", stored(1))
    settings = {"trusted_identity": True, "operator_key_file": str(key_file)}
    async with serving(kvmanager) as inner, gateway(model, kvmanager, inner, **settings) as bench:
        async with reading(bench.address, metadata=[("authorization", f"Bearer {key_file.read_text()}")]) as operator:
            await operator.until(1)
        async with reading(bench.address, metadata=[("octavo-tenant", "acme")]) as reader:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await reader.call.read()
        assert OctavoError.from_rpc(refused.value).reason == "OPERATOR_ONLY"
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        async with reading(bench.address) as nobody:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await nobody.call.read()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
