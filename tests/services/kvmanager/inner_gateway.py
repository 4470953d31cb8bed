"""A gateway's end of the stream to the KV manager, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import grpc

from octavo.v1 import common_pb2, kvmanager_pb2, kvmanager_pb2_grpc
from services.rpc.columns import pack_int32, unpack_int32, unpack_int64

PATIENCE = 30.0


@dataclass
class Reply:
    """What has come for one request."""

    sequences: dict[int, list[int]] = field(default_factory=dict)
    finish_reasons: dict[int, int] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    progress: list[tuple[int, int]] = field(default_factory=list)
    end: kvmanager_pb2.RequestEnd | None = None

    @property
    def usage(self) -> common_pb2.Usage:
        assert self.end is not None
        assert self.end.HasField("usage"), self.end
        return self.end.usage

    @property
    def error(self) -> kvmanager_pb2.RequestError:
        assert self.end is not None
        assert self.end.HasField("error"), self.end
        return self.end.error

    def take(self, update: kvmanager_pb2.SequenceUpdate) -> None:
        assert self.end is None
        tokens = self.sequences.setdefault(update.sequence_index, [])
        assert update.position == len(tokens), "a gap or a repeat"
        assert update.sequence_index not in self.finish_reasons, "a token after the last"
        tokens += update.token_ids
        if update.finish_reason:
            self.finish_reasons[update.sequence_index] = update.finish_reason
        if update.HasField("score"):
            self.scores[update.sequence_index] = update.score


class InnerGateway:
    """Attached to a KV manager."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.backends: list[kvmanager_pb2.BackendState] = []
        self.messages: list[kvmanager_pb2.AttachResponse] = []
        self._call = kvmanager_pb2_grpc.KVManagerServiceStub(channel).Attach()
        self._replies: dict[int, Reply] = {}
        self._handles = count(1)
        self._changed = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._call:
            async with self._changed:
                if message.HasField("backend"):
                    self.backends.append(message.backend)
                self.messages.append(message)
                for progress in message.progress:
                    prefill = progress.prefill
                    self._replies[progress.handle].progress.append((prefill.computed_tokens, prefill.prompt_tokens))
                for update in (*_plain_updates(message.tokens), *message.updates):
                    self._replies[update.handle].take(update)
                for end in message.ends:
                    self._replies[end.handle].end = end
                self._changed.notify_all()

    async def submit(self, prompt: list[int], seed: int = 0, **fields: Any) -> Reply:
        """Sends a request. Of one that is resumed the reply has what it had."""
        fields.setdefault("n", 1)
        reply = Reply()
        for index, sequence in enumerate(fields.get("resumption", kvmanager_pb2.Resumption()).sequences):
            reply.sequences[index] = unpack_int32(sequence.token_ids)
        handle = next(self._handles)
        self._replies[handle] = reply
        submission = kvmanager_pb2.Submission(
            handle=handle,
            prompt_token_ids=pack_int32(prompt),
            sampling=common_pb2.SamplingParams(seed=seed),
            **fields,
        )
        await self._call.write(kvmanager_pb2.AttachRequest(submissions=[submission]))
        return reply

    async def pace(self, interval: float) -> None:
        """Asks for plain tokens of so many seconds at a time."""
        await self._call.write(kvmanager_pb2.AttachRequest(token_interval_us=round(interval * 1e6)))

    async def wait_for_tokens(self, reply: Reply, number: int) -> None:
        await self._wait(lambda: sum(map(len, reply.sequences.values())) >= number or reply.end is not None)
        assert reply.end is None, f"it has ended before: {reply}"

    async def finished(self, reply: Reply) -> Reply:
        await self._wait(lambda: reply.end is not None)
        return reply

    async def generate(self, prompt: list[int], seed: int = 0, **fields: Any) -> Reply:
        """A whole answer."""
        return await self.finished(await self.submit(prompt, seed, **fields))

    async def wait_for_backend(self, ready: bool) -> kvmanager_pb2.BackendState:
        await self._wait(lambda: bool(self.backends) and self.backends[-1].ready is ready)
        return self.backends[-1]

    async def ended(self) -> None:
        """Returns when the stream is over; raises what it ended with."""
        await self._reader

    async def _wait(self, condition: Any) -> None:
        async with self._changed:
            waiting = self._changed.wait_for(lambda: self._reader.done() or condition())
            await asyncio.wait_for(waiting, PATIENCE)
            if self._reader.done() and not condition():
                self._reader.result()
                raise AssertionError("the stream ended")

    async def close(self) -> None:
        self._call.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


def _plain_updates(columns: kvmanager_pb2.TokenColumns) -> list[kvmanager_pb2.SequenceUpdate]:
    handles, positions = unpack_int64(columns.handles), unpack_int32(columns.positions)
    indices = unpack_int32(columns.sequence_indices) or [0] * len(handles)
    counts = unpack_int32(columns.counts) or [1] * len(handles)
    token_ids = iter(unpack_int32(columns.token_ids))
    updates = [
        kvmanager_pb2.SequenceUpdate(
            handle=handle, sequence_index=index, position=position, token_ids=list(islice(token_ids, count))
        )
        for handle, index, position, count in zip(handles, indices, positions, counts, strict=True)
    ]
    assert not list(token_ids)
    return updates
