"""One call with one answer, and its tries."""

import grpc

from octavo.client.errors import OctavoError
from octavo.client.generation import call_deadline
from octavo.client.retries import Retries, is_transient


class UnaryCall:
    """Tells a client whether to try again.

    Args:
        retries: Of this call.
        repeatable: Whether it does no harm twice. If not, it is tried again only after a server's refusal: a connection
            that breaks leaves open whether it was done.
        done_before: What a server answers where an earlier try has done it already.
        server_knows_timeout: Whether the request holds the timeout too.
    """

    def __init__(
        self,
        retries: Retries,
        *,
        repeatable: bool = True,
        done_before: grpc.StatusCode | None = None,
        server_knows_timeout: bool = False,
    ) -> None:
        self._retries = retries
        self._repeatable = repeatable
        self._done_before = done_before
        self._server_knows_timeout = server_knows_timeout
        self._failed = False
        self._may_be_done = False

    def next_deadline(self) -> float | None:
        """Seconds that the next try may take.

        Raises:
            OctavoError: DEADLINE_EXCEEDED: there is no time left for another try.
        """
        if self._failed:
            self._retries.check_timeout()
        remaining = self._retries.remaining()
        return call_deadline(remaining) if self._server_knows_timeout else remaining

    def is_done(self, error: OctavoError) -> bool:
        """Whether the error only says that an earlier try, whose answer was lost, has done it."""
        return self._may_be_done and error.status is self._done_before

    def delay_after(self, error: OctavoError) -> float:
        """Seconds to wait before the next try.

        Raises:
            OctavoError: There is none.
        """
        if not is_transient(error) or not (self._repeatable or error.from_server):
            raise error
        self._failed = True
        self._may_be_done |= not error.from_server
        return self._retries.delay_after(error)
