"""Lets requests in as far as their tenants' limits allow, and counts what they use."""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

import grpc

from gateway.prepared import PreparedRequest
from gateway.rate_limits import LimitExceeded
from gateway.scope import Identity
from gateway.tenants import Directory
from octavo.v1 import common_pb2
from services.gateway.limit_keeper import LimitKeeper
from services.gateway.usage_counter import UsageCounter
from services.rpc.status import ExceededQuota, RpcError
from services.state.limits import LEASE_SECONDS, SharedLimits
from services.state.store import StateUnavailable
from services.state.tenants import UsageStore

TELL_SECONDS = 1.0
TELLS_PER_RENEWAL = round(LEASE_SECONDS / 3 / TELL_SECONDS)

LAST_WORD_SECONDS = 1.0
"""For what was counted at the very end."""


class Visit:
    """One request of a caller, from the door on, for the time of a ``with`` block.

    Args:
        continued: It was let in before, here or at another gateway. If not, entering the block raises
            RESOURCE_EXHAUSTED where the caller's tenant has used up a limit already, and `begin` is to follow.
    """

    def __init__(self, identity: Identity, limits: LimitKeeper, usage: UsageCounter, *, continued: bool) -> None:
        self.identity = identity
        self._limits = limits
        self._usage = usage
        self._continued = continued
        self._lease = secrets.token_hex(8)
        self._generated_tokens = 0
        self._cached_tokens = 0
        self._sequences_per_kept = 1.0

    def __enter__(self) -> Visit:
        if self._continued:
            self._limits.go_on(self.identity.tenant, self._lease)
            return self
        try:
            self._limits.check(self.identity.tenant)
        except LimitExceeded as error:
            self._count_refusal()
            raise limit_error(error, self.identity.tenant) from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._limits.end(self._lease)
        if isinstance(error, RpcError) and error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self._count_refusal()

    async def begin(self, request: PreparedRequest) -> None:
        """Lets the request in, now that it is known how long its prompt is.

        Raises:
            RpcError: RESOURCE_EXHAUSTED: it would exceed a limit of its tenant.
        """
        prompt_tokens = len(request.prompt_token_ids)
        self._sequences_per_kept = request.sequences_per_kept
        try:
            await self._limits.begin(self.identity.tenant, prompt_tokens, self._lease)
        except LimitExceeded as error:
            raise limit_error(error, self.identity.tenant) from error
        usage = self._usage.of(self.identity)
        usage.requests += 1
        usage.prompt_tokens += prompt_tokens

    def count(self, used: common_pb2.Usage) -> None:
        """What the request has used up to now, prompt aside. May be told as often as one likes.

        Towards limits, those sequences count too that are computed only to choose the best.
        """
        generated = used.completion_tokens - self._generated_tokens
        cached = used.cached_tokens - self._cached_tokens
        self._generated_tokens += generated
        self._cached_tokens += cached
        usage = self._usage.of(self.identity)
        usage.generated_tokens += generated
        usage.cached_tokens += cached
        if generated:
            self._limits.generated(self.identity.tenant, math.ceil(generated * self._sequences_per_kept))

    def _count_refusal(self) -> None:
        self._usage.of(self.identity).refused += 1


class Admission:
    """The limits and the usage of all tenants, at one gateway.

    Args:
        directory: The tenants as they are known now.
        limits: What is used of limits at all gateways together; None: this is the only one.
        usage: Where totals are kept.
    """

    def __init__(
        self,
        directory: Callable[[], Directory],
        limits: SharedLimits | None,
        usage: UsageStore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = LimitKeeper(directory, limits, clock)
        self._usage = UsageCounter(usage)

    def visit(self, identity: Identity) -> Visit:
        """A request that is to be let in."""
        return Visit(identity, self._limits, self._usage, continued=False)

    def continued(self, identity: Identity) -> Visit:
        """A request that was let in before."""
        return Visit(identity, self._limits, self._usage, continued=True)

    async def run(self) -> None:
        """Tells the store what is used, for ever."""
        for turn in itertools.count(1):
            await asyncio.sleep(TELL_SECONDS)
            await self._tell(renew=turn % TELLS_PER_RENEWAL == 0)

    async def close(self) -> None:
        """Tells the store of the last requests, if it listens."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._tell(renew=False), LAST_WORD_SECONDS)

    async def _tell(self, *, renew: bool) -> None:
        with suppress(StateUnavailable):
            await self._limits.tell(renew=renew)
        with suppress(StateUnavailable):
            await self._usage.hand_on()


def limit_error(error: LimitExceeded, tenant: str) -> RpcError:
    """The status of what a tenant's limit refuses."""
    quota = ExceededQuota(f"tenant:{tenant}", error.limit, error.value)
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    return RpcError(code, str(error), "TENANT_LIMIT", retry_after=error.retry_after, quota=quota)
