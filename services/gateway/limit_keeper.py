"""Keeps requests within their tenants' limits.

Each gateway keeps account of what passes through itself. That refuses at once, before a prompt is tokenized, whoever
has used up a limit here already. Where a store knows what passes through the others too, it is asked once for each
request, for a bounded time; what it does not answer in time, or while it is away, this gateway's account alone decides.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from gateway.rate_limits import LimitExceeded, TenantRates
from gateway.tenants import Directory, Tenant
from services.state.limits import SharedLimits, TenantNews
from services.state.store import StateUnavailable

ASK_SECONDS = 0.25
"""For so long a request waits for the store at most."""

AWAY_SECONDS = 1.0
"""For so long nobody asks a store that did not answer."""


class LimitKeeper:
    """What the tenants of one gateway use of their limits.

    Args:
        directory: The tenants as they are known now.
        shared: What is used at all gateways together. None: this is the only one.
        clock: Seconds, of which only differences count.
    """

    def __init__(
        self, directory: Callable[[], Directory], shared: SharedLimits | None, clock: Callable[[], float]
    ) -> None:
        self._directory = directory
        self._shared = shared
        self._clock = clock
        self._ask_again_at = clock()
        self._questions: set[asyncio.Task[None]] = set()
        self._rates: dict[str, TenantRates] = {}
        self._leases: dict[str, str] = {}
        """Of requests that run: whose each is."""
        self._ended: dict[str, list[str]] = {}
        self._generated: Counter[str] = Counter()

    def check(self, name: str) -> None:
        """Whether a tenant may have another request, as far as can be told before its prompt is looked at.

        Raises:
            LimitExceeded: It may not.
        """
        if (rates := self._rates.get(name)) is not None:
            rates.check(self._tenant(name), 1, self._clock())

    async def begin(self, name: str, prompt_tokens: int, lease: str) -> None:
        """Lets a request of a tenant in.

        Args:
            lease: A name of the request that no other has. It is to be ended, whatever this raises.

        Raises:
            LimitExceeded: It would be too much.
        """
        tenant, rates, now = self._tenant(name), self._rates_of(name), self._clock()
        rates.check(tenant, prompt_tokens, now)
        # Taken before the store is asked, so that requests that ask at the same time know of one another.
        rates.begin(tenant, prompt_tokens, now)
        self._leases[lease] = name
        try:
            await self._ask(tenant, prompt_tokens, lease)
        except LimitExceeded:
            rates.take_back(tenant, prompt_tokens)
            raise

    def go_on(self, name: str, lease: str) -> None:
        """A request runs here that was let in before."""
        self._rates_of(name).go_on()
        self._leases[lease] = name

    def generated(self, name: str, tokens: int) -> None:
        """A tenant was given so many tokens."""
        self._rates_of(name).add_tokens(self._tenant(name), tokens, self._clock())
        self._generated[name] += tokens

    def end(self, lease: str) -> None:
        """A request is over. One that was never let in is not known, and that is no error."""
        if (name := self._leases.pop(lease, None)) is not None:
            self._rates_of(name).end()
            self._ended.setdefault(name, []).append(lease)

    async def tell(self, *, renew: bool) -> None:
        """Tells the store what happened. What can't be told is dropped, to the tenant's advantage.

        Args:
            renew: Also tell which requests run; those that are not told of count no more after `LEASE_SECONDS`.

        Raises:
            StateUnavailable: It can't be told now.
        """
        now = self._clock()
        self._rates = {name: rates for name, rates in self._rates.items() if not rates.is_idle(now)}
        generated, self._generated = self._generated, Counter()
        ended, self._ended = self._ended, {}
        running: dict[str, list[str]] = {}
        for lease, name in self._leases.items() if renew else ():
            running.setdefault(name, []).append(lease)
        news = [
            TenantNews(self._tenant(name), generated[name], running.get(name, ()), ended.get(name, ()))
            for name in {*generated, *ended, *running}
        ]
        news = [each for each in news if _is_limited(each.tenant)]
        if self._shared is not None and news:
            await self._shared.tell(news)

    async def _ask(self, tenant: Tenant, prompt_tokens: int, lease: str) -> None:
        """Asks the store, where there is one that answers in time.

        Raises:
            LimitExceeded: It says no.
        """
        if self._shared is None or not _is_limited(tenant) or self._clock() < self._ask_again_at:
            return
        question = asyncio.ensure_future(self._shared.begin(tenant, prompt_tokens, lease))
        self._questions.add(question)
        question.add_done_callback(self._forget)
        # Its connection is left to itself, not broken off: an answer that comes too late is let pass.
        await asyncio.wait([question], timeout=ASK_SECONDS)
        try:
            if not question.done():
                raise StateUnavailable("no answer in time")
            question.result()
        except StateUnavailable:
            self._ask_again_at = self._clock() + AWAY_SECONDS

    def _forget(self, question: asyncio.Task[None]) -> None:
        self._questions.discard(question)
        if not question.cancelled():
            question.exception()  # has been looked at

    def _tenant(self, name: str) -> Tenant:
        return self._directory().tenant(name)

    def _rates_of(self, name: str) -> TenantRates:
        rates = self._rates.get(name)
        if rates is None:
            rates = self._rates[name] = TenantRates()
        return rates


def _is_limited(tenant: Tenant) -> bool:
    return bool(tenant.requests_per_minute or tenant.tokens_per_minute or tenant.max_concurrent)
