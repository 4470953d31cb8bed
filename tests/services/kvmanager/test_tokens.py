"""How plain tokens get to a gateway: those of each step, or those of an interval together."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence as SequenceOf
from itertools import cycle
from typing import Any

import pytest

from kvmanager.request import FinishReason, Request, Sequence
from kvmanager.spec import RequestSpec
from kvmanager.step import Outputs, RequestEnd, SequenceUpdate, Usage
from octavo.v1 import kvmanager_pb2
from services.kvmanager.sessions import Sessions
from services.rpc.columns import unpack_int32, unpack_int64
from tests.oracle import expected_output
from tests.services.kvmanager.conftest import MakeRig
from tests.services.kvmanager.oracle_service import OracleService

PROMPT = [1, 2, 3]
FOREVER = 60.0
LARGE = 2**40

Row = tuple[int, int, int, list[int]]


class Gateway:
    """One that is attached to sessions, and sequences of its requests."""

    def __init__(self, interval: float = 0.0) -> None:
        self.sessions = Sessions()
        session = self.sessions.open()
        self.number, self.outbox = session.number, session.outbox
        self.sessions.pace(self.number, interval)

    def sequence(self, number: int, output: SequenceOf[int], sample_index: int = 0) -> Sequence:
        scopes: Any = None
        request = Request(RequestSpec((self.number, number), PROMPT), number, 0.0, scopes, max_length=99)
        self.sessions.opened(self.number, number)
        return Sequence(number, request, sample_index, array("i", [*PROMPT, *output]))

    def hears(self) -> list[Row]:
        """Rows of the only message there is."""
        message = self.outbox.get_nowait()
        assert message is not None
        assert self.outbox.empty()
        return rows_of(message)


def rows_of(message: kvmanager_pb2.AttachResponse) -> list[Row]:
    columns = message.tokens
    handles, token_ids = unpack_int64(columns.handles), unpack_int32(columns.token_ids)
    indices = unpack_int32(columns.sequence_indices) or [0] * len(handles)
    positions, counts = unpack_int32(columns.positions), unpack_int32(columns.counts) or [1] * len(handles)
    rows = []
    for handle, index, position, count in zip(handles, indices, positions, counts, strict=True):
        rows.append((handle, index, position, token_ids[:count]))
        del token_ids[:count]
    assert not token_ids
    return rows


def more(sequence: Sequence, token_id: int) -> Outputs:
    """A step that gives the sequence a token."""
    sequence.token_ids.append(token_id)
    return Outputs(tokens=[sequence])


async def test_each_step_s_last_tokens_are_one_message() -> None:
    gateway = Gateway()
    sequences = [gateway.sequence(LARGE, [50, 60]), gateway.sequence(LARGE + 1, [51], sample_index=3)]
    gateway.sessions.dispatch(Outputs(tokens=sequences))
    assert gateway.hears() == [(LARGE, 0, 1, [60]), (LARGE + 1, 3, 0, [51])]


async def test_gateways_hear_of_their_own_requests_alone() -> None:
    one = Gateway()
    other = Gateway()
    other.sessions = one.sessions
    session = one.sessions.open()
    other.number, other.outbox = session.number, session.outbox
    one.sessions.dispatch(Outputs(tokens=[one.sequence(7, [50]), other.sequence(7, [60])]))
    assert one.hears() == [(7, 0, 0, [50])]
    assert other.hears() == [(7, 0, 0, [60])]


async def test_first_tokens_do_not_wait() -> None:
    gateway = Gateway(FOREVER)
    old = gateway.sequence(1, [50, 51])
    gateway.sessions.dispatch(Outputs(tokens=[old, gateway.sequence(2, [60])]))
    assert gateway.hears() == [(2, 0, 0, [60])]


async def test_tokens_of_an_interval_come_together_with_no_step_to_follow() -> None:
    gateway = Gateway(0.05)
    sequences = [gateway.sequence(number, [10 * number]) for number in (1, 2)]
    for token_id in range(3):
        for sequence in sequences:
            gateway.sessions.dispatch(more(sequence, token_id))
    rows: dict[int, list[int]] = {1: [10], 2: [20]}
    while sum(map(len, rows.values())) < 8:
        for handle, _, position, token_ids in rows_of(await asyncio.wait_for(gateway.outbox.get(), 30)):
            assert position == len(rows[handle])
            rows[handle] += token_ids
    assert rows == {1: [10, 0, 1, 2], 2: [20, 0, 1, 2]}


async def test_what_has_more_to_tell_takes_along_what_waits() -> None:
    """The last token of a sequence comes after those before it, and only once."""
    gateway = Gateway(FOREVER)
    ending, other = gateway.sequence(1, [50]), gateway.sequence(2, [60, 61])
    gateway.sessions.dispatch(more(ending, 51))
    gateway.sessions.dispatch(Outputs(tokens=[other]))
    ending.token_ids.append(52)
    last = SequenceUpdate(ending.handle, 0, 2, [52], [], FinishReason.STOP)
    gateway.sessions.dispatch(Outputs(updates=[last], ends=[RequestEnd(ending.handle, Usage(3, 3, 0))]))
    message = gateway.outbox.get_nowait()
    assert rows_of(message) == [(1, 0, 1, [51]), (2, 0, 1, [61])]
    assert [(update.handle, update.position, list(update.token_ids)) for update in message.updates] == [(1, 2, [52])]
    assert [end.handle for end in message.ends] == [1]


@pytest.mark.parametrize("interval", [0.0, FOREVER])
async def test_a_new_interval_begins_with_nothing_that_waits(interval: float) -> None:
    """So that no token is overtaken by those after it."""
    gateway = Gateway(FOREVER)
    gateway.sessions.dispatch(Outputs(tokens=[gateway.sequence(1, [50, 51])]))
    assert gateway.outbox.empty()
    gateway.sessions.pace(gateway.number, interval)
    assert gateway.hears() == [(1, 0, 1, [51])]


async def test_nothing_waits_for_a_request_that_was_aborted() -> None:
    gateway = Gateway(FOREVER)
    gateway.sessions.dispatch(Outputs(tokens=[gateway.sequence(1, [50, 51]), gateway.sequence(2, [60, 61])]))
    gateway.sessions.ended(gateway.number, 1)
    gateway.sessions.dispatch(Outputs(ends=[RequestEnd((gateway.number, 3), Usage(1, 1, 0))]))
    assert gateway.hears() == [(2, 0, 1, [61])]


@pytest.mark.parametrize("interval", [0.0, 0.01, FOREVER])
async def test_whatever_the_interval_the_answers_are_the_same(make_rig: MakeRig, interval: float) -> None:
    rig = await make_rig(OracleService())
    await rig.gateway.pace(interval)
    requests = [([number, 7, 9], number, 5 + 3 * number) for number in range(6)]
    replies = [await rig.gateway.submit(prompt, seed, max_tokens=length) for prompt, seed, length in requests]
    for (prompt, seed, length), reply in zip(requests, replies, strict=True):
        await rig.gateway.finished(reply)
        assert reply.sequences[0] == expected_output(prompt, seed, 0, length, frozenset())
    if interval == FOREVER:
        # Of each request its first token and its end, which take along what others have.
        assert sum(bool(message.tokens.handles) for message in rig.gateway.messages) <= 2 * len(requests)
    await rig.when_idle()


async def test_an_interval_that_changes_all_the_time_loses_nothing(make_rig: MakeRig) -> None:
    rig = await make_rig(OracleService())
    prompt, length = [4, 5, 6], 300
    reply = await rig.gateway.submit(prompt, 1, max_tokens=length)
    intervals = cycle([FOREVER, 0.0, 0.005, 0.0])
    while reply.end is None:
        await rig.gateway.pace(next(intervals))
        await asyncio.sleep(0)
    assert reply.sequences[0] == expected_output(prompt, 1, 0, length, frozenset())
