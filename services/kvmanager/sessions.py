"""The streams to the gateways: at most one message for each gateway and step."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import count
from typing import Any, cast

from kvmanager.request import Sequence
from kvmanager.step import Outputs, Progress, RequestEnd, SequenceUpdate
from octavo.v1 import kvmanager_pb2
from services.kvmanager.codec import encode_end, encode_progress, encode_update
from services.kvmanager.token_rows import HeldTokens, TokenRows
from services.rpc.status import RpcError

Outbox = asyncio.Queue[kvmanager_pb2.AttachResponse | None]
"""Ends with None."""

MAX_INTERVAL_SECONDS = 60.0


class Session:
    """One gateway that is attached.

    Attributes:
        number: Its number here.
        outbox: What it is to hear.
        requests: Those of its requests that have not ended, by its own numbers.
        farewell: What it is told when its outbox has ended, where it was ended from here.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.outbox = Outbox()
        self.requests: set[int] = set()
        self.farewell: RpcError | None = None
        self._interval = 0.0
        self._held = HeldTokens()
        self._alarm: asyncio.TimerHandle | None = None

    def pace(self, interval: float) -> None:
        """From here on plain tokens come together for so many seconds. What waits now is sent."""
        self._interval = min(max(interval, 0.0), MAX_INTERVAL_SECONDS)
        self._send_held()

    def ended(self, handle: int) -> None:
        """A request is over, and its gateway knows."""
        self.requests.discard(handle)
        self._held.drop(handle)

    def close(self) -> None:
        """The gateway is gone."""
        if self._alarm is not None:
            self._alarm.cancel()

    def end(self, farewell: RpcError, complete: bool) -> None:
        """Ends the stream from here.

        Args:
            complete: What waits to be sent is sent before; otherwise not a word more.
        """
        if complete:
            self._send_held()
        else:
            while not self.outbox.empty():
                self.outbox.get_nowait()
        self.farewell = farewell
        self.outbox.put_nowait(None)

    def send(
        self,
        progress: list[Progress],
        tokens: list[Sequence],
        updates: list[SequenceUpdate],
        ends: list[RequestEnd],
    ) -> None:
        """What one step has for this gateway."""
        rows = TokenRows()
        rows.add_last(self._urgent(tokens))
        if updates or ends:
            told = {(_number(update.handle), update.sample_index): update.position for update in updates}
            self._held.move_to(rows, told)
        message = kvmanager_pb2.AttachResponse(
            progress=[encode_progress(each, _number(each.handle)) for each in progress],
            updates=[encode_update(each, _number(each.handle)) for each in updates],
            ends=[encode_end(each, _number(each.handle)) for each in ends],
        )
        for end in message.ends:
            self.ended(end.handle)
        if rows.handles:
            rows.write(message.tokens)
        elif not (progress or updates or ends):
            return
        self.outbox.put_nowait(message)

    def _urgent(self, tokens: list[Sequence]) -> list[Sequence]:
        """Keeps what can wait, and returns what can't."""
        if not self._interval:
            return tokens
        urgent = [sequence for sequence in tokens if sequence.num_output == 1]
        for sequence in tokens:
            if sequence.num_output > 1:
                self._held.keep(sequence)
        if self._held and self._alarm is None:
            loop = asyncio.get_running_loop()
            # Bounds as a gateway on the same machine has them for its streams: what comes is sent on at once.
            end = (loop.time() // self._interval + 1) * self._interval
            self._alarm = loop.call_at(end, self._send_held)
        return urgent

    def _send_held(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        rows = TokenRows()
        self._held.move_to(rows, {})
        if rows.handles:
            message = kvmanager_pb2.AttachResponse()
            rows.write(message.tokens)
            self.outbox.put_nowait(message)


class Sessions:
    """Gateways that are attached. A request's handle is (session, the gateway's own number)."""

    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}
        self._ids = count(1)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self) -> Session:
        number = next(self._ids)
        session = self._sessions[number] = Session(number)
        return session

    def end_all(self, farewell: RpcError, complete: bool) -> None:
        """Ends every stream from here, as `Session.end` does."""
        for session in self._sessions.values():
            session.end(farewell, complete)

    def close(self, session: int) -> list[tuple[int, int]]:
        """Forgets a gateway. Returns the handles of its requests that have not ended."""
        closed = self._sessions.pop(session, None)
        if closed is None:
            return []
        closed.close()
        return [(session, handle) for handle in closed.requests]

    def pace(self, session: int, interval: float) -> None:
        """From here on a gateway gets plain tokens together for so many seconds."""
        self._sessions[session].pace(interval)

    def opened(self, session: int, handle: int) -> None:
        """A gateway's request is on its way."""
        self._sessions[session].requests.add(handle)

    def ended(self, session: int, handle: int) -> None:
        """A request is over without a word to its gateway."""
        if session in self._sessions:
            self._sessions[session].ended(handle)

    def refuse(self, session: int, handle: int, error: kvmanager_pb2.RequestError) -> None:
        """Ends a request with an error."""
        self.ended(session, handle)
        if session in self._sessions:
            end = kvmanager_pb2.RequestEnd(handle=handle, error=error)
            self._sessions[session].outbox.put_nowait(kvmanager_pb2.AttachResponse(ends=[end]))

    def beat(self) -> None:
        """Says something to every gateway that has nothing to hear, which a KV manager that hangs does not."""
        for session in self._sessions.values():
            if session.outbox.empty():
                session.outbox.put_nowait(kvmanager_pb2.AttachResponse())

    def broadcast(self, backend: kvmanager_pb2.BackendState) -> None:
        """Tells every gateway how the backend is."""
        for session in self._sessions.values():
            session.outbox.put_nowait(kvmanager_pb2.AttachResponse(backend=backend))

    def dispatch(self, outputs: Outputs) -> None:
        """Sends each gateway its share of one step's outputs."""
        progress, tokens = _by_session(outputs.progress), _by_session(outputs.tokens)
        updates, ends = _by_session(outputs.updates), _by_session(outputs.ends)
        for number in progress.keys() | tokens.keys() | updates.keys() | ends.keys():
            if (session := self._sessions.get(number)) is not None:
                session.send(progress[number], tokens[number], updates[number], ends[number])


def _by_session(outputs: list[Any]) -> defaultdict[int, list[Any]]:
    """Whatever has a handle, by the gateway that it is for."""
    found: defaultdict[int, list[Any]] = defaultdict(list)
    for each in outputs:
        found[each.handle[0]].append(each)
    return found


def _number(handle: object) -> int:
    """The gateway's own number for a request."""
    return cast(tuple[int, int], handle)[1]
