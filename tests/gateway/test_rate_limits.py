"""Limits of a tenant, against the rule written out."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.rate_limits import LimitExceeded, TenantRates
from gateway.tenants import Tenant

START = 1000.0


def seconds_to_wait(rates: TenantRates, tenant: Tenant, prompt_tokens: int, now: float) -> float:
    """0: the request may come in."""
    try:
        rates.check(tenant, prompt_tokens, now)
    except LimitExceeded as refused:
        return refused.retry_after or math.inf
    return 0.0


def let_in(rates: TenantRates, tenant: Tenant, prompt_tokens: int, now: float) -> bool:
    if seconds_to_wait(rates, tenant, prompt_tokens, now):
        return False
    rates.begin(tenant, prompt_tokens, now)
    return True


def test_a_minutes_worth_at_once_and_then_as_much_as_drains() -> None:
    tenant, rates = Tenant("acme", requests_per_minute=4), TenantRates()
    assert [let_in(rates, tenant, 1, START) for _ in range(5)] == [True] * 4 + [False]
    with pytest.raises(LimitExceeded) as refused:
        rates.check(tenant, 1, START + 5)
    assert (refused.value.limit, refused.value.value) == ("requests_per_minute", 4)
    assert refused.value.retry_after == pytest.approx(10)
    assert let_in(rates, tenant, 1, START + 15)
    assert not let_in(rates, tenant, 1, START + 15)


def test_what_is_generated_makes_others_wait() -> None:
    tenant, rates = Tenant("acme", tokens_per_minute=60), TenantRates()
    assert let_in(rates, tenant, 10, START)
    rates.add_tokens(tenant, 100, START)
    with pytest.raises(LimitExceeded) as refused:
        rates.check(tenant, 1, START)
    assert (refused.value.limit, refused.value.retry_after) == ("tokens_per_minute", pytest.approx(51))
    assert let_in(rates, tenant, 20, START + 70)


def test_a_prompt_that_never_fits_is_told_so() -> None:
    with pytest.raises(LimitExceeded, match="prompt alone has more than the tenant's 60 tokens") as refused:
        TenantRates().check(Tenant("acme", tokens_per_minute=60), 61, START)
    assert refused.value.retry_after is None
    TenantRates().check(Tenant("acme", tokens_per_minute=60), 60, START)


def test_requests_at_the_same_time() -> None:
    tenant, rates = Tenant("acme", max_concurrent=2), TenantRates()
    assert [let_in(rates, tenant, 1, START) for _ in range(3)] == [True, True, False]
    rates.end()
    assert let_in(rates, tenant, 1, START)


def test_a_limit_that_changes_leaves_no_debt_behind() -> None:
    many, rates = Tenant("acme", requests_per_minute=6000), TenantRates()
    while let_in(rates, many, 1, START):
        pass
    few = replace(many, requests_per_minute=6)
    with pytest.raises(LimitExceeded) as refused:
        rates.check(few, 1, START)
    assert refused.value.retry_after == pytest.approx(10)
    assert all(let_in(rates, replace(many, requests_per_minute=0), 1, START) for _ in range(10))


@given(st.integers(1, 50), st.integers(1, 500), st.integers(0, 2**32))
def test_no_minute_sees_more_than_two_minutes_worth(requests: int, tokens: int, seed: int) -> None:
    """Whoever asks as often as it can, gets the rate in the long run; and the advice when to try again is exact."""
    randomness = random.Random(seed)
    tenant, rates, now = Tenant("acme", requests_per_minute=requests, tokens_per_minute=tokens), TenantRates(), START
    taken: list[tuple[float, int]] = []
    for _ in range(60):
        prompt = randomness.randint(1, tokens)
        wait = seconds_to_wait(rates, tenant, prompt, now)
        if wait:
            assert seconds_to_wait(rates, tenant, prompt, now + 0.99 * wait - 1e-5)
            now += wait
        else:
            rates.begin(tenant, prompt, now)
            taken.append((now, prompt))
            now += randomness.choice([0, 0, randomness.expovariate(0.5)])
    for start, _ in taken:
        minute = [prompt for at, prompt in taken if start <= at < start + 60]
        assert len(minute) <= 2 * requests
        assert sum(minute) <= 2 * tokens
    assert not rates.is_idle(taken[-1][0])
    while rates.running:
        rates.end()
    assert rates.is_idle(now + 61)
