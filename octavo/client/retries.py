"""When a call is tried again, and how long after."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from octavo.client.errors import OctavoError

log = logging.getLogger(__name__)

LEAST_SECONDS = 0.001
"""With less left of its time than this, a call is not tried any more."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How long a client goes on trying where servers are away, restart, or have no room.

    The time of an outage begins with the first failure after the last response. Waits between tries grow from
    `initial_delay` by `multiplier` to `maximum_delay`, each shortened by up to half at random, so that clients that
    lost the same server do not return together. With several addresses each is tried once before any wait. A server's
    own word on when to return (``google.rpc.RetryInfo``) is followed.

    Attributes:
        start_patience: Most seconds of an outage before a call has had any response. 0: each address once.
        patience: Most seconds of an outage in the middle of a stream.
        initial_delay: Seconds.
        maximum_delay: Seconds.
        multiplier: From one wait to the next.
    """

    start_patience: float = 10.0
    patience: float = 60.0
    initial_delay: float = 0.1
    maximum_delay: float = 2.0
    multiplier: float = 2.0


DEFAULT_RETRIES = RetryPolicy()


def is_about_one_server(error: OctavoError) -> bool:
    """Whether another server may do better at once."""
    return error.status is grpc.StatusCode.UNAVAILABLE or not error.from_server


def is_transient(error: OctavoError) -> bool:
    """Whether the same call may well succeed a little later, or with another server."""
    is_full = error.status is grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after is not None
    return is_full or is_about_one_server(error)


class Retries:
    """The tries of one call.

    Args:
        policy: None: there is one try.
        timeout: Seconds that all tries may take together; None: no limit.
        num_addresses: Servers that can be asked.
        clock: Seconds, monotonic.
        random: From 0 to 1.
    """

    def __init__(
        self,
        policy: RetryPolicy | None,
        timeout: float | None,
        num_addresses: int,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._timeout = timeout
        self._end = None if timeout is None else clock() + timeout
        self._num_addresses = num_addresses
        self._clock = clock
        self._random = random
        self._begun = False
        self._failures = 0
        self._failing_since = 0.0
        self._last_error: OctavoError | None = None

    def remaining(self) -> float | None:
        """Seconds that are left of the timeout; may be negative. None: no limit."""
        return None if self._end is None else self._end - self._clock()

    def outage_seconds(self) -> float:
        """Seconds since the first failure after the last response."""
        return self._clock() - self._failing_since if self._failures else 0.0

    def responded(self) -> None:
        """A response has come: an outage, if there was one, is over."""
        self._begun = True
        self._failures = 0

    def delay_after(self, error: OctavoError) -> float:
        """Seconds to wait before the next try.

        Args:
            error: Transient.

        Raises:
            OctavoError: There is no next try. `error`, or DEADLINE_EXCEEDED where the timeout is over.
        """
        if self._policy is None:
            raise error
        self._last_error = error
        now = self._clock()
        if not self._failures:
            self._failing_since = now
        self._failures += 1
        delay = self._delay(self._policy, error)
        if now + delay - self._failing_since > (self._policy.patience if self._begun else self._policy.start_patience):
            raise error
        remaining = self.remaining()
        if remaining is not None:
            self.check_timeout()
            if delay > remaining and not is_about_one_server(error):
                raise error
            delay = min(delay, remaining)
        log.info("trying again in %.2f s after %s", delay, error)
        return delay

    def check_timeout(self) -> None:
        """Before a further try.

        Raises:
            OctavoError: DEADLINE_EXCEEDED: the timeout is over.
        """
        remaining = self.remaining()
        if remaining is None or remaining >= LEAST_SECONDS:
            return
        message = f"not done within {self._timeout:g} s"
        if self._last_error is not None:
            message += f"; the last try ended with {self._last_error}"
        raise OctavoError(grpc.StatusCode.DEADLINE_EXCEEDED, message, field="timeout")

    def _delay(self, policy: RetryPolicy, error: OctavoError) -> float:
        if self._failures % self._num_addresses and is_about_one_server(error):
            return 0.0
        rounds = min(self._failures // self._num_addresses, 64)
        longest = min(policy.initial_delay * policy.multiplier ** max(rounds - 1, 0), policy.maximum_delay)
        if error.retry_after is not None:
            return max(error.retry_after, policy.initial_delay) + policy.initial_delay * self._random()
        return longest * (0.5 + 0.5 * self._random())
