"""Requests as the gateway's core prepares them, and what is heard of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.prepared import PreparedRequest, ResolvedSampling
from gateway.scope import Scope, ScopeSpan
from octavo.v1 import kvmanager_pb2
from services.gateway.request_stream import RequestStream

SCOPE = Scope(salt=b"salt", narrowness=1, owner="acme")


def prepared(prompt: list[int] | None = None, stop: tuple[str, ...] = (), **changes: Any) -> PreparedRequest:
    """A greedy request; `changes` are fields that are to be different."""
    prompt = [5, 6, 7] if prompt is None else prompt
    request = PreparedRequest(
        request_id="one",
        model="inner",
        tenant="acme",
        prompt_token_ids=prompt,
        spans=(ScopeSpan(len(prompt), SCOPE),),
        n=1,
        best_of=0,
        beam=None,
        kept=1,
        shows_logprobs=False,
        max_tokens=20,
        min_tokens=0,
        stop_token_ids=(2,),
        sampling=ResolvedSampling(
            temperature=0.0,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            seed=7,
            logprobs=None,
            stop=stop,
            skip_special_tokens=True,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            repetition_penalty=1.0,
            logit_bias={},
            guide=None,
        ),
        timeout_us=0,
        priority=0,
        report_progress=False,
        response_interval=0.0,
    )
    return replace(request, **changes)


class Reader:
    """Reads a stream, and checks that each token comes once and none is missing.

    Attributes:
        token_ids: What has come, by sequence.
        end: How the request ended.
    """

    def __init__(self, stream: RequestStream) -> None:
        self._stream = stream
        self.token_ids: dict[int, list[int]] = {}
        self.end: kvmanager_pb2.RequestEnd | None = None

    async def read(self, count: int, index: int = 0) -> list[int]:
        """Reads until a sequence has so many tokens, and returns all that it has."""
        while len(self.token_ids.get(index, [])) < count:
            await self._next()
        return self.token_ids[index]

    async def read_all(self) -> dict[int, list[int]]:
        """Reads until the end, which is a good one."""
        while self.end is None:
            await self._next()
        assert self.end.HasField("usage"), self.end
        return self.token_ids

    async def _next(self) -> None:
        delivery = await self._stream.next()
        self.end = delivery.end
        for update in delivery.updates:
            known = self.token_ids.setdefault(update.sequence_index, [])
            assert update.position == len(known), "a gap or a repeat"
            known += update.token_ids
