"""How much a tenant may ask for: requests and tokens a minute, and requests at the same time.

The rule. What a tenant uses fills a bucket that holds a minute's worth and drains evenly, in a minute. A request is let
in if what it brings fits: one request in one bucket, the tokens of its prompt in another. So a tenant that was idle may
use a minute's worth at once, and from then on as much as drains. Tokens that are generated are added as they come,
those of sequences too that are computed only to choose the best ones. They may fill the bucket beyond its brim, and
then new requests wait for longer; a request that was let in is never ended for it. A prompt that is longer than a whole
minute's worth is never let in.

A bucket is one number, the time at which it will be empty (the generic cell rate algorithm, ITU-T I.371): to add an
amount moves that time on by as long as the amount takes to drain. So a limit that changes changes nothing of what a
tenant has used before, and a bucket that is empty need not be kept.
"""

from __future__ import annotations

from gateway.tenants import Tenant

REQUESTS_PER_MINUTE = "requests_per_minute"
TOKENS_PER_MINUTE = "tokens_per_minute"
MAX_CONCURRENT = "max_concurrent"

MINUTE = 60.0

# Whoever comes again exactly when it was told to is let in.
_ROUNDING_SECONDS = 1e-6

CONCURRENT_RETRY_SECONDS = 1.0
"""When another try is worth it where all depends on when a request ends."""


class LimitExceeded(Exception):
    """A tenant's request would exceed a limit.

    Attributes:
        limit: Its name, as of `Tenant`.
        value: What it is.
        retry_after: Seconds after which there is room, if nobody else takes it. None: never.
    """

    def __init__(self, limit: str, value: int, retry_after: float | None) -> None:
        super().__init__((_USED_UP if retry_after is not None else _NEVER)[limit].format(value))
        self.limit = limit
        self.value = value
        self.retry_after = retry_after


_USED_UP = {
    REQUESTS_PER_MINUTE: "requests_per_minute: the tenant has used up its {} requests a minute",
    TOKENS_PER_MINUTE: "tokens_per_minute: the tenant has used up its {} tokens a minute",
    MAX_CONCURRENT: "max_concurrent: the tenant has {} requests under way, as many as it may have at a time",
}
_NEVER = {TOKENS_PER_MINUTE: "tokens_per_minute: the prompt alone has more than the tenant's {} tokens a minute"}


class TenantRates:
    """What one tenant uses, as one gateway knows it. Limits of 0 are none, and may change at any time."""

    def __init__(self) -> None:
        self._requests_drained_at = 0.0
        self._tokens_drained_at = 0.0
        self.running = 0

    def check(self, tenant: Tenant, prompt_tokens: int, now: float) -> None:
        """Takes nothing.

        Args:
            prompt_tokens: Of the request; 1 while they are not counted yet.
            now: Seconds of a clock that only goes forward, here and below.

        Raises:
            LimitExceeded: The request would be too much.
        """
        _check(self._requests_drained_at, 1, REQUESTS_PER_MINUTE, tenant.requests_per_minute, now)
        _check(self._tokens_drained_at, prompt_tokens, TOKENS_PER_MINUTE, tenant.tokens_per_minute, now)
        if 0 < tenant.max_concurrent <= self.running:
            raise LimitExceeded(MAX_CONCURRENT, tenant.max_concurrent, CONCURRENT_RETRY_SECONDS)

    def begin(self, tenant: Tenant, prompt_tokens: int, now: float) -> None:
        """Takes what a request brings, whether it fits or not."""
        self._requests_drained_at = _fill(self._requests_drained_at, 1, tenant.requests_per_minute, now)
        self.add_tokens(tenant, prompt_tokens, now)
        self.running += 1

    def go_on(self) -> None:
        """A request runs that was let in before."""
        self.running += 1

    def take_back(self, tenant: Tenant, prompt_tokens: int) -> None:
        """What a request had brought that was not let in after all. It is to be ended, too."""
        self._requests_drained_at -= _seconds(1, tenant.requests_per_minute)
        self._tokens_drained_at -= _seconds(prompt_tokens, tenant.tokens_per_minute)

    def add_tokens(self, tenant: Tenant, count: int, now: float) -> None:
        """Tokens were used."""
        self._tokens_drained_at = _fill(self._tokens_drained_at, count, tenant.tokens_per_minute, now)

    def end(self) -> None:
        """A request that was begun, or went on, is over."""
        self.running -= 1

    def is_idle(self, now: float) -> bool:
        """Whether a new one would be the same."""
        return not self.running and max(self._requests_drained_at, self._tokens_drained_at) <= now


def _check(drained_at: float, amount: int, limit: str, per_minute: int, now: float) -> None:
    if not per_minute:
        return
    if amount > per_minute:
        raise LimitExceeded(limit, per_minute, None)
    wait = _fill(drained_at, amount, per_minute, now) - now - MINUTE
    if wait > _ROUNDING_SECONDS:
        raise LimitExceeded(limit, per_minute, wait)


def _fill(drained_at: float, amount: int, per_minute: int, now: float) -> float:
    return max(now, drained_at) + _seconds(amount, per_minute) if per_minute else drained_at


def _seconds(amount: int, per_minute: int) -> float:
    """How long an amount takes to drain."""
    return amount * MINUTE / per_minute if per_minute else 0.0
