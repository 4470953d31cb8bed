"""The streams to the gateways: one message for each gateway and step."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import count
from typing import Any, cast

from kvmanager.request import Sequence
from kvmanager.step import Outputs
from octavo.v1 import kvmanager_pb2
from services.kvmanager.codec import encode_end, encode_progress, encode_tokens, encode_update

Outbox = asyncio.Queue[kvmanager_pb2.AttachResponse]


class Sessions:
    """Gateways that are attached. A request's handle is (session, the gateway's own number)."""

    def __init__(self) -> None:
        self._outboxes: dict[int, Outbox] = {}
        self._requests: dict[int, set[int]] = {}
        self._ids = count(1)

    def open(self) -> tuple[int, Outbox]:
        session, outbox = next(self._ids), Outbox()
        self._outboxes[session] = outbox
        self._requests[session] = set()
        return session, outbox

    def close(self, session: int) -> list[tuple[int, int]]:
        """Forgets a gateway. Returns the handles of its requests that have not ended."""
        self._outboxes.pop(session, None)
        return [(session, handle) for handle in self._requests.pop(session, ())]

    def opened(self, session: int, handle: int) -> None:
        """A gateway's request is on its way."""
        self._requests[session].add(handle)

    def ended(self, session: int, handle: int) -> None:
        """A request is over without a word to its gateway."""
        self._requests.get(session, set()).discard(handle)

    def refuse(self, session: int, handle: int, error: kvmanager_pb2.RequestError) -> None:
        """Ends a request with an error."""
        self.ended(session, handle)
        end = kvmanager_pb2.RequestEnd(handle=handle, error=error)
        self._send(session, kvmanager_pb2.AttachResponse(ends=[end]))

    def broadcast(self, backend: kvmanager_pb2.BackendState) -> None:
        """Tells every gateway how the backend is."""
        for session in self._outboxes:
            self._send(session, kvmanager_pb2.AttachResponse(backend=backend))

    def dispatch(self, outputs: Outputs) -> None:
        """Sends each gateway its share of one step's outputs, as one message."""
        messages: defaultdict[int, kvmanager_pb2.AttachResponse] = defaultdict(kvmanager_pb2.AttachResponse)
        for progress in outputs.progress:
            session, handle = _split(progress.handle)
            messages[session].progress.append(encode_progress(progress, handle))
        self._add_tokens(outputs, messages)
        for update in outputs.updates:
            session, handle = _split(update.handle)
            messages[session].updates.append(encode_update(update, handle))
        for end in outputs.ends:
            session, handle = _split(end.handle)
            self.ended(session, handle)
            messages[session].ends.append(encode_end(end, handle))
        for session, message in messages.items():
            self._send(session, message)

    def _add_tokens(self, outputs: Outputs, messages: defaultdict[int, kvmanager_pb2.AttachResponse]) -> None:
        """A step has hundreds of these."""
        by_session: defaultdict[int, list[Sequence]] = defaultdict(list)
        for sequence in cast(list[Any], outputs.tokens):
            by_session[sequence.handle[0]].append(sequence)
        for session, sequences in by_session.items():
            encode_tokens(sequences, messages[session].tokens)

    def _send(self, session: int, message: kvmanager_pb2.AttachResponse) -> None:
        outbox = self._outboxes.get(session)
        if outbox is not None:
            outbox.put_nowait(message)


def _split(handle: object) -> tuple[int, int]:
    assert isinstance(handle, tuple)
    session, number = handle
    return session, number
