"""Guides are looked at in a process that may take neither long nor much, while the gateway goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from gateway.errors import InvalidArgument
from gateway.guide_compiler import grammar_of
from gateway.prepared import PreparedGuide
from gateway.request import Guide, GuideKind
from gateway.tokenizer import Tokenizer
from services.gateway.guide_checker import GuideChecker


def _tokenizer(decoder: decoders.Decoder | None) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({each: i for i, each in enumerate([*alphabet, "<end>"])}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if decoder is not None:
        backend.decoder = decoder
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend, eos_token_ids=[256, 100_000])


@pytest.fixture
async def checker() -> AsyncIterator[GuideChecker]:
    checker = GuideChecker(_tokenizer(decoders.ByteLevel()))
    yield checker
    await checker.close()


def regex(text: str) -> PreparedGuide:
    return PreparedGuide(grammar_of(Guide(GuideKind.REGEX, text)), "sampling.guide.regex")


def endless() -> PreparedGuide:
    """To compile, beyond all patience."""
    patterns = [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}$"} for n in range(1, 30)]
    return PreparedGuide(grammar_of(Guide(GuideKind.JSON_SCHEMA, json.dumps({"allOf": patterns}))), "the field")


async def test_guides_are_taken_or_refused(checker: GuideChecker) -> None:
    await checker.check(None)
    for _ in range(2):
        await checker.check(regex("a+"))
        with pytest.raises(InvalidArgument, match="unclosed group") as error:
            await checker.check(regex("(a"))
        assert error.value.field == "sampling.guide.regex"


async def test_one_that_takes_too_long_is_refused_while_the_loop_runs(checker: GuideChecker) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    turning = asyncio.ensure_future(turn())
    with pytest.raises(InvalidArgument, match=r"takes more than 0\.5 s to compile"):
        await checker.check(endless())
    turning.cancel()
    assert turns > 10
    await checker.check(regex("b+"))  # in a new process
    process = checker._process
    with pytest.raises(InvalidArgument, match=r"takes more than 0\.5 s"):
        await checker.check(endless())
    assert checker._process is process, "what is known already is not compiled again"


async def test_a_process_that_is_gone_is_started_again(checker: GuideChecker) -> None:
    await checker.check(regex("a+"))
    assert checker._process is not None
    process = checker._process
    os.kill(process.pid, signal.SIGKILL)
    await asyncio.to_thread(process._process.wait)
    await checker.check(regex("b+"))
    assert checker._process is not process


async def test_who_leaves_takes_no_answer_along(checker: GuideChecker) -> None:
    leaving = [asyncio.ensure_future(checker.check(regex(f"(a{index}"))) for index in range(3)]
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*(checker.check(regex(f"b{index}")) for index in range(3)))
    with pytest.raises(InvalidArgument, match="unclosed group"):
        await checker.check(regex("(a0"))


async def test_a_tokenizer_that_guides_cannot_read() -> None:
    checker = GuideChecker(_tokenizer(None))
    for guide in ("a", "b"):
        with pytest.raises(InvalidArgument, match="of a kind that guides can't read"):
            await checker.check(regex(guide))
    await checker.close()
