"""Responses on their way to a reader in the same process."""

from __future__ import annotations

import asyncio

from services.gateway.mailbox import Mailbox


async def test_whoever_writes_goes_at_the_readers_pace() -> None:
    mailbox = Mailbox()
    written: list[bytes] = []

    async def write_three() -> None:
        for response in (b"1", b"2", b"3"):
            await mailbox.write(response)
            written.append(response)
        mailbox.close()

    writing = asyncio.ensure_future(write_three())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert written == [b"1"]
    assert [response async for response in mailbox] == [b"1", b"2", b"3"]
    await writing


async def test_a_writer_that_is_stopped_while_it_waits_holds_up_nothing() -> None:
    mailbox = Mailbox()
    await mailbox.write(b"1")
    writing = asyncio.ensure_future(mailbox.write(b"2"))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    mailbox.close()
    assert [response async for response in mailbox] == [b"1"]
