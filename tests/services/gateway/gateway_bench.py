"""A gateway's process between a real client and a KV manager that does what it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import tokenizers
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tokenizers import decoders, models, pre_tokenizers

from octavo.client import AsyncClient
from octavo.v1 import common_pb2, inference_pb2, kvmanager_pb2
from services.config import GatewayConfig
from services.gateway.server import GatewayService
from tests.ports import free_port
from tests.services.scripted_kvmanager import Script, ScriptedKVManager, end, serving, tokens

STOP, LENGTH = common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def save_bytes_tokenizer(folder: Path, *, eos: str | None = None) -> Path:
    """A tokenizer that knows bytes only.

    Args:
        eos: One of the letters, which then ends answers: without such a token none can be guided.
    """
    if eos is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    backend = tokenizers.Tokenizer(models.BPE({letter: index for index, letter in enumerate(ALPHABET)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    return folder


def ids(text: str) -> list[int]:
    return [ALPHABET.index(letter) for letter in text]


class Bench:
    """A gateway and the KV manager behind it."""

    def __init__(self, kvmanager: ScriptedKVManager, address: str, service: GatewayService) -> None:
        self.kvmanager = kvmanager
        self.service = service
        self.address = address
        self.client = AsyncClient(address, retry=None)

    @property
    def url(self) -> str:
        """Where it serves HTTP."""
        return f"http://{self.service.http_address}"

    @property
    def submission(self) -> kvmanager_pb2.Submission:
        """Of the only request."""
        (submission,) = self.kvmanager.submissions
        return submission

    async def ask(self, prompt: Any = "abc", **arguments: Any) -> list[inference_pb2.GenerateResponse]:
        return [response async for response in self.client.generate(prompt, **arguments)]

    async def wait_until_ready(self) -> None:
        await self.wait_for_health(health_pb2.HealthCheckResponse.SERVING)

    async def wait_for_health(
        self, status: health_pb2.HealthCheckResponse.ServingStatus.ValueType, service: str = ""
    ) -> None:
        """Returns when the gateway says so."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for _ in range(6000):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
                if answer.status == status:
                    return
                await asyncio.sleep(0.005)
        pytest.fail(f"health of {service!r} never became {status}")


@asynccontextmanager
async def gateway(model: Path, kvmanager: ScriptedKVManager, inner: str, **settings: Any) -> AsyncIterator[Bench]:
    """A gateway in front of a KV manager that is there already, at that address."""
    where = {"port": free_port(), "http_port": 0, "kvmanager": inner}
    config = GatewayConfig(model=str(model), **{"drain_seconds": 0, **where, **settings})
    service = GatewayService(config)
    await service.start()
    running = asyncio.ensure_future(service.run())
    made = Bench(kvmanager, config.address, service)
    try:
        await made.wait_until_ready()
        yield made
    finally:
        await made.client.close()
        await service.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def bench(model: Path, script: Script, **settings: Any) -> AsyncIterator[Bench]:
    """A gateway and a KV manager."""
    kvmanager = ScriptedKVManager(script)
    async with serving(kvmanager) as inner, gateway(model, kvmanager, inner, **settings) as made:
        yield made


def one_answer(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
    """ "ab" for each of n sequences, or the end of a pin."""
    if submission.HasField("pin"):
        return [end(submission, prompt_tokens=3, cached_tokens=0)]
    answers = [tokens(submission, ids("ab"), index=index, reason=LENGTH) for index in range(submission.n)]
    return [*answers, end(submission, cached_tokens=2, prefix_match_end=common_pb2.PREFIX_MATCH_END_EVICTED)]
