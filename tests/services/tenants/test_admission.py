"""Limits at one gateway: with and without a store that knows of others, and what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Callable
from datetime import datetime
from typing import Any

import grpc
import pytest
import tokenizers
from tokenizers import models

from gateway.gateway import Gateway
from gateway.prepared import ModelLimits, PreparedRequest
from gateway.rate_limits import LimitExceeded
from gateway.request import GenerationRequest, SamplingParams, TokenPrompt
from gateway.scope import Identity
from gateway.tenants import Directory, Tenant
from gateway.tokenizer import Tokenizer
from octavo.v1 import common_pb2
from services.gateway import limit_keeper
from services.gateway.admission import Admission
from services.rpc.status import ExceededQuota, RpcError
from services.state.limits import TenantNews
from services.state.store import StateUnavailable
from services.state.tenants import EmbeddedUsage, Usage, UsageBatch

TOKENIZER = Tokenizer(tokenizers.Tokenizer(models.BPE({"a": 0}, [])))
ACME = Identity("acme", "search")
BETA = Identity("beta", "chat")


def prepared(prompt_tokens: int, **sampling: Any) -> PreparedRequest:
    """A request as the core hands it on."""
    gateway = Gateway(TOKENIZER, "m", now=datetime.now)
    request = GenerationRequest(TokenPrompt([0] * prompt_tokens), SamplingParams(**sampling))
    return gateway.prepare(request, ModelLimits(1000, 1, 16), ACME)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Shared:
    """A store of limits that answers as it is told to, and notes what it hears."""

    def __init__(self) -> None:
        self.answer: Callable[[], None] = lambda: None
        self.silent = False
        self.asked: list[tuple[str, int, str]] = []
        self.news: list[TenantNews] = []

    async def begin(self, tenant: Tenant, prompt_tokens: int, lease: str) -> None:
        self.asked.append((tenant.name, prompt_tokens, lease))
        if self.silent:
            await asyncio.Event().wait()
        self.answer()

    async def tell(self, news: list[TenantNews]) -> None:
        self.news += news
        self.answer()


class Bench:
    """An admission of two tenants."""

    def __init__(self, shared: Shared | None = None, **limits: int) -> None:
        self.clock = Clock()
        self.directory = Directory([Tenant("acme", **limits), Tenant("beta")])  # type: ignore[arg-type]
        self.usage = EmbeddedUsage(lambda: 5.0)
        self.admission = Admission(lambda: self.directory, shared, self.usage, self.clock)

    async def ask(
        self,
        identity: Identity = ACME,
        prompt_tokens: int = 1,
        generated: int = 0,
        fails: Exception | None = None,
    ) -> None:
        with self.admission.visit(identity) as visit:
            await visit.begin(prepared(prompt_tokens))
            for count in range(1, generated + 1):
                visit.count(common_pb2.Usage(completion_tokens=count, cached_tokens=prompt_tokens // 2))
            if fails is not None:
                raise fails

    async def refused(self, prompt_tokens: int = 1) -> RpcError:
        with pytest.raises(RpcError) as error:
            await self.ask(prompt_tokens=prompt_tokens)
        assert error.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.value.reason == "TENANT_LIMIT"
        return error.value

    async def used(self, tenant: str) -> dict[str, Usage]:
        await self.admission.close()
        return dict((await self.usage.of(tenant)).by_app)


async def test_requests_a_minute() -> None:
    bench = Bench(requests_per_minute=2)
    for _ in range(2):
        await bench.ask()
        await bench.ask(BETA)
    error = await bench.refused()
    assert error.quota == ExceededQuota("tenant:acme", "requests_per_minute", 2)
    assert error.retry_after == pytest.approx(30)
    await bench.ask(BETA)
    bench.clock.now += 30
    await bench.ask()
    assert await bench.used("acme") == {"search": Usage(requests=3, prompt_tokens=3, refused=1)}


async def test_tokens_a_minute_are_those_of_the_prompt_and_of_the_answer() -> None:
    bench = Bench(tokens_per_minute=60)
    await bench.ask(prompt_tokens=20, generated=50)
    error = await bench.refused()
    assert error.quota == ExceededQuota("tenant:acme", "tokens_per_minute", 60)
    assert error.retry_after == pytest.approx(11)
    bench.clock.now += 40
    await bench.refused(prompt_tokens=31)
    assert (await bench.refused(prompt_tokens=61)).retry_after is None
    await bench.ask(prompt_tokens=30)
    expected = Usage(requests=2, prompt_tokens=50, cached_tokens=10, generated_tokens=50, refused=3)
    assert await bench.used("acme") == {"search": expected}


@pytest.mark.parametrize("sampling", [{"best_of": 8, "n": 2}, {"beam_width": 8, "n": 2}])
async def test_sequences_that_are_computed_to_choose_the_best_count_towards_limits(sampling: dict[str, int]) -> None:
    bench = Bench(tokens_per_minute=60)
    with bench.admission.visit(ACME) as visit:
        await visit.begin(prepared(20, **sampling))
        visit.count(common_pb2.Usage(completion_tokens=20))
    assert (await bench.refused()).retry_after == pytest.approx(20 + 4 * 20 + 1 - 60)
    assert (await bench.used("acme"))["search"].generated_tokens == 20


async def test_requests_at_the_same_time_and_their_end_however_it_comes() -> None:
    bench = Bench(max_concurrent=1)
    with bench.admission.visit(ACME) as running:
        await running.begin(prepared(1))
        assert (await bench.refused()).quota == ExceededQuota("tenant:acme", "max_concurrent", 1)
        await bench.ask(BETA)
    await bench.ask()
    with pytest.raises(ValueError, match="broken"):
        await bench.ask(fails=ValueError("broken"))
    with bench.admission.continued(ACME):
        await bench.refused()
    await bench.ask()


async def test_one_that_goes_on_is_never_refused() -> None:
    bench = Bench(requests_per_minute=1, max_concurrent=1)
    await bench.ask()
    with bench.admission.continued(ACME) as first, bench.admission.continued(ACME):
        first.count(common_pb2.Usage(completion_tokens=3))
    assert await bench.used("acme") == {"search": Usage(requests=1, prompt_tokens=1, generated_tokens=3)}


async def test_what_is_refused_further_in_counts_too() -> None:
    bench = Bench()
    full = RpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", "QUEUE_FULL")
    with pytest.raises(RpcError):
        await bench.ask(prompt_tokens=4, fails=full)
    assert await bench.used("acme") == {"search": Usage(requests=1, prompt_tokens=4, refused=1)}


# --- With a store ---------------------------------------------------------------------------------------------------


async def test_the_store_is_asked_once_for_each_request_of_a_tenant_with_limits() -> None:
    shared = Shared()
    bench = Bench(shared, tokens_per_minute=100)
    await bench.ask(prompt_tokens=7)
    await bench.ask(BETA)
    assert [(tenant, tokens) for tenant, tokens, _ in shared.asked] == [("acme", 7)]


async def test_what_the_store_refuses_takes_nothing() -> None:
    shared = Shared()
    bench = Bench(shared, requests_per_minute=1, tokens_per_minute=10, max_concurrent=1)

    def refuse() -> None:
        raise LimitExceeded("requests_per_minute", 1, 12.5)

    shared.answer = refuse
    for _ in range(3):
        assert (await bench.refused(prompt_tokens=10)).retry_after == 12.5
    shared.answer = lambda: None
    await bench.ask(prompt_tokens=10)


async def test_who_has_used_up_a_limit_here_is_not_even_asked_about() -> None:
    shared = Shared()
    bench = Bench(shared, requests_per_minute=1)
    await bench.ask()
    await bench.refused()
    assert len(shared.asked) == 1


async def test_while_the_store_is_away_each_gateway_keeps_to_the_limits_alone() -> None:
    shared = Shared()
    bench = Bench(shared, requests_per_minute=3)

    def fail() -> None:
        raise StateUnavailable("away")

    shared.answer = fail
    for _ in range(3):
        await bench.ask()
    assert len(shared.asked) == 1, "for a while nobody asks again"
    await bench.refused()
    bench.clock.now += 30
    await bench.ask()
    assert len(shared.asked) == 2


async def test_a_store_that_says_nothing_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_keeper, "ASK_SECONDS", 0.01)
    shared = Shared()
    shared.silent = True
    bench = Bench(shared, requests_per_minute=3)
    for _ in range(3):
        await bench.ask()
    await bench.refused()
    assert len(shared.asked) == 1


async def test_the_store_hears_of_what_is_generated_of_those_that_run_and_of_their_end() -> None:
    shared = Shared()
    bench = Bench(shared, tokens_per_minute=100, max_concurrent=5)
    keeper = bench.admission._limits
    with bench.admission.visit(ACME) as visit, bench.admission.visit(BETA) as other:
        await visit.begin(prepared(1))
        await other.begin(prepared(1))
        visit.count(common_pb2.Usage(completion_tokens=4))
        (asked,) = shared.asked
        await keeper.tell(renew=False)
        assert [(news.tenant.name, news.tokens, list(news.running)) for news in shared.news] == [("acme", 4, [])]
        shared.news.clear()
        await keeper.tell(renew=True)
        assert [(news.tokens, list(news.running)) for news in shared.news] == [(0, [asked[2]])]
        shared.news.clear()
    await keeper.tell(renew=True)
    assert [(news.tokens, list(news.running), list(news.ended)) for news in shared.news] == [(0, [], [asked[2]])]
    shared.news.clear()
    await keeper.tell(renew=True)
    assert shared.news == []


async def test_usage_that_could_not_be_handed_on_is_handed_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    add, lost = bench.usage.add, True

    async def losing_the_answer(batch: UsageBatch) -> None:
        await add(batch)
        if lost:
            raise StateUnavailable("away")

    monkeypatch.setattr(bench.usage, "add", losing_the_answer)
    for _ in range(3):
        await bench.ask()
        await bench.admission.close()
    lost = False
    await bench.admission.close()
    assert await bench.used("acme") == {"search": Usage(requests=3, prompt_tokens=3)}


async def test_whatever_ends_requests_none_counts_as_running_for_ever() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    randomness = random.Random(seed)
    shared = Shared()
    bench = Bench(shared, requests_per_minute=50, max_concurrent=5)

    def answer() -> None:
        if randomness.random() < 0.2:
            raise LimitExceeded("max_concurrent", 5, 1.0)
        if randomness.random() < 0.05:
            raise StateUnavailable("away")

    async def request() -> None:
        fails = ValueError("broken") if randomness.random() < 0.2 else None
        await asyncio.sleep(randomness.random() * 0.05)
        bench.clock.now += 0.5
        with contextlib.suppress(RpcError, ValueError):
            await bench.ask(generated=randomness.randint(0, 3), fails=fails)

    shared.answer = answer
    requests = [asyncio.ensure_future(request()) for _ in range(200)]
    await asyncio.sleep(0.02)
    for each in randomness.sample(requests, 50):
        each.cancel()
    await asyncio.gather(*requests, return_exceptions=True)
    shared.answer = lambda: None
    shared.news.clear()
    await bench.admission.close()
    ended = [lease for news in shared.news for lease in news.ended]
    assert {lease for _, _, lease in shared.asked} <= set(ended)
    assert len(ended) == len(set(ended))
    shared.news.clear()
    await bench.admission._limits.tell(renew=True)
    assert shared.news == []
    bench.clock.now += 1000
    for _ in range(5):
        await bench.ask()
