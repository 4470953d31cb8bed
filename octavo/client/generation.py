"""One request and its tries: what to send next, what of the responses to hand on, and when to give up."""

import logging
import secrets
import uuid
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from octavo.client.continuation import Continuation
from octavo.client.errors import OctavoError
from octavo.client.retries import Retries, is_transient
from octavo.v1 import inference_pb2

log = logging.getLogger(__name__)

_DEADLINE_MARGIN_SECONDS = 1.0

# What Resume answers where the request is not known any more, its log is shorter than what has arrived, or there is no
# such method.
_CANNOT_RESUME = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.UNIMPLEMENTED}

# An earlier try runs although its answer was lost; or the server of one wrote late into the log what it had to write,
# and so took the request from where it goes on. On the first try it is another caller who has it.
_HELD_BY_AN_EARLIER_TRY = {grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.ABORTED}

# What it answers while the state store, which has the log, is away; and for how long that is waited for.
_LOG_AWAY = "STATE_UNAVAILABLE"
_LOG_PATIENCE_SECONDS = 5.0


def call_deadline(timeout: float | None) -> float | None:
    """Seconds of the deadline of a call whose server knows the timeout too.

    The server ends a request at its `timeout` and says so. The deadline of the call, which holds where no server
    answers, comes a little later, so that the server's word arrives first. A timeout that the server refuses gets the
    margin too: the server says what is wrong with it.
    """
    return None if timeout is None else max(timeout, 0.0) + _DEADLINE_MARGIN_SECONDS


def make_repeatable(request: inference_pb2.GenerateRequest) -> None:
    """Gives a request a name, and a seed where it would get a random one: sent again, it gets the same answer."""
    request.request_id = request.request_id or uuid.uuid4().hex
    sampling = request.sampling
    is_greedy = sampling.HasField("temperature") and sampling.temperature == 0
    if not (is_greedy or sampling.HasField("seed") or sampling.HasField("beam_width")):
        sampling.seed = secrets.randbits(63)


def start(stub: Any, message: Message, deadline: float | None, metadata: Sequence[tuple[str, str]]) -> Any:
    """The call that sends it, of either kind of client."""
    method = stub.Resume if isinstance(message, inference_pb2.ResumeRequest) else stub.Generate
    return method(message, timeout=deadline, metadata=metadata)


def as_generated(
    response: inference_pb2.GenerateResponse | inference_pb2.ResumeResponse,
) -> inference_pb2.GenerateResponse:
    """What either method streams."""
    return response.response if isinstance(response, inference_pb2.ResumeResponse) else response


class Generation:
    """Tells a client what to do, from one try to the next.

    A stream that breaks goes on with Resume. Where nothing is known of the request any more, Generate gives the same
    answer again, and what has arrived already is left out.

    Args:
        request: Is made repeatable.
        retries: Of this request.

    Attributes:
        complete: Whether the request's last response has come.
    """

    def __init__(self, request: inference_pb2.GenerateRequest, retries: Retries) -> None:
        make_repeatable(request)
        self._request = request
        self._retries = retries
        self._continuation = Continuation(request.sampling.n or 1)
        self.complete = False
        self._num_tries = 0
        self._resumes = False
        self._try_responded = False

    def next_call(self) -> tuple[inference_pb2.GenerateRequest | inference_pb2.ResumeRequest, float | None]:
        """What to send, and the seconds of the call's deadline.

        Raises:
            OctavoError: DEADLINE_EXCEEDED: there is no time left for another try.
        """
        if self._num_tries:
            self._retries.check_timeout()
            what = "resuming" if self._resumes else "repeating"
            log.info(
                "%s request %s after tokens %s", what, self._request.request_id, self._continuation.next_positions()
            )
        self._num_tries += 1
        self._try_responded = False
        remaining = self._retries.remaining()
        if self._resumes:
            self._continuation.resume()
            from_token = self._continuation.next_positions()
            return inference_pb2.ResumeRequest(request_id=self._request.request_id, from_token=from_token), remaining
        self._continuation.restart()
        if self._num_tries > 1 and remaining is not None:
            self._request.timeout.FromNanoseconds(round(remaining * 1e9))
        return self._request, call_deadline(remaining)

    def new_part(self, response: inference_pb2.GenerateResponse) -> inference_pb2.GenerateResponse | None:
        """What of a response the caller does not have yet.

        Raises:
            OctavoError: DATA_LOSS: the server left tokens out.
        """
        self._try_responded = True
        self._retries.responded()
        self.complete |= response.HasField("usage")
        return self._continuation.new_part(response)

    def delay_after(self, error: OctavoError) -> float:
        """Seconds to wait before the next try.

        Raises:
            OctavoError: There is none.
        """
        if self._resumes and self._cannot_resume(error):
            self._resumes = False
            return 0.0
        if self._num_tries > 1 and error.status in _HELD_BY_AN_EARLIER_TRY:
            self._resumes = True
            return self._retries.delay_after(error)
        if not is_transient(error) or (self._try_responded and error.status is grpc.StatusCode.RESOURCE_EXHAUSTED):
            raise error
        # Without a word from the server, nobody knows whether the request has begun.
        self._resumes |= self._try_responded or not error.from_server
        return self._retries.delay_after(error)

    def _cannot_resume(self, error: OctavoError) -> bool:
        """Whether only the whole answer once more helps.

        Better is to go on with what was noted: on some hardware sums are rounded otherwise beside other requests, and a
        second answer may then differ from the first.
        """
        is_away = error.reason == _LOG_AWAY and self._retries.outage_seconds() >= _LOG_PATIENCE_SECONDS
        return is_away or error.status in _CANNOT_RESUME
