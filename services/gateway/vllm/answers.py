"""What a request is answered, from the gateway's responses to the protocol's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from gateway.sampling_checks import MAX_N
from octavo.v1 import common_pb2, inference_pb2

ABORTED = "abort"

_REASONS = {common_pb2.FINISH_REASON_STOP: "stop", common_pb2.FINISH_REASON_LENGTH: "length"}

INCOMPLETE = "\ufffd"
"""What a character looks like of which a part is missing."""

MAX_HIDDEN_TOKENS = 64
"""So many tokens that are no text may stand in a stop string for it to be named."""

Decode = Callable[[Sequence[int]], str]
"""The text of tokens, as stop strings are looked for in it."""


@dataclass(slots=True)
class _Sequence:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[common_pb2.TokenLogprobs] = field(default_factory=list)
    finish_reason: str = ""


class Answer:
    """The answer to one request, as far as it has come.

    New tokens are sent as chunks where the client streams. Each sequence's end is sent when all have ended: only then
    it is known how much of the prompt was cached.

    Args:
        request: What is answered.
        decode: As of `Decode`.

    Attributes:
        prompt_tokens: Of the request; 0 while it is not known.
    """

    def __init__(self, request: vllm.GenerateRequest, decode: Decode) -> None:
        self.prompt_tokens = 0
        self._request = request
        self._decode = decode
        # More are refused.
        self._sequences = [_Sequence() for _ in range(min(request.sampling_params.n or 1, MAX_N))]
        self._over = False

    def add(self, response: inference_pb2.GenerateResponse) -> Iterator[vllm.GenerateResponse]:
        """What is to be sent after a response of the gateway's."""
        sequence = self._sequences[response.sequence_index]
        sequence.token_ids += response.token_ids
        sequence.logprobs += response.logprobs
        sequence.finish_reason = _REASONS.get(response.finish_reason, "")
        if self._request.stream and response.token_ids:
            yield vllm.GenerateResponse(chunk=self._chunk(response))
        if response.HasField("usage"):
            self._over = True
            self.prompt_tokens = response.usage.prompt_tokens
            yield from self._completes(response.usage.cached_tokens)

    def aborted(self) -> Iterator[vllm.GenerateResponse]:
        """What is to be sent where the answer ends here, because it was told to: nothing where it has ended already."""
        if self._over:
            return iter(())
        for sequence in self._sequences:
            sequence.finish_reason = sequence.finish_reason or ABORTED
        return self._completes(0)

    def _chunk(self, response: inference_pb2.GenerateResponse) -> vllm.GenerateStreamChunk:
        return vllm.GenerateStreamChunk(
            token_ids=response.token_ids,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=len(response.token_ids),
            output_logprobs=self._logprobs(response.token_ids, response.logprobs),
            index=response.sequence_index,
        )

    def _completes(self, cached_tokens: int) -> Iterator[vllm.GenerateResponse]:
        for index, sequence in enumerate(self._sequences):
            complete = vllm.GenerateComplete(
                output_ids=sequence.token_ids,
                finish_reason=sequence.finish_reason,
                prompt_tokens=self.prompt_tokens,
                completion_tokens=len(sequence.token_ids),
                cached_tokens=cached_tokens,
                output_logprobs=self._logprobs(sequence.token_ids, sequence.logprobs),
                index=index,
            )
            self._add_stop(complete)
            yield vllm.GenerateResponse(complete=complete)

    def _add_stop(self, complete: vllm.GenerateComplete) -> None:
        """What ended a sequence, unless that is an end-of-sequence token of the model's own."""
        if complete.finish_reason != _REASONS[common_pb2.FINISH_REASON_STOP] or not complete.output_ids:
            return
        stop = self._stop_string(complete.output_ids)
        if stop:
            complete.matched_stop_str = stop
        elif complete.output_ids[-1] in self._request.sampling_params.stop_token_ids:
            complete.matched_token_id = complete.output_ids[-1]

    def _stop_string(self, token_ids: Sequence[int]) -> str:
        """The stop string that the last token completes, or nothing: the first one, and of those that end together the
        longest, as in `gateway.stop_strings`."""
        stops = self._request.sampling_params.stop
        if not stops:
            return ""
        # A character may be four tokens, and some tokens are none.
        tail = token_ids[-(4 * max(map(len, stops)) + MAX_HIDDEN_TOKENS) :]
        text, start = self._decode(tail), len(self._decode(tail[:-1]).rstrip(INCOMPLETE))
        places = [(text.find(stop, max(0, start - len(stop) + 1)), stop) for stop in stops]
        completed = [(place + len(stop), -len(stop), stop) for place, stop in places if place >= 0]
        return min(completed)[2] if completed else ""

    def _logprobs(
        self, token_ids: Iterable[int], logprobs: Sequence[common_pb2.TokenLogprobs]
    ) -> vllm.OutputLogProbs | None:
        if not logprobs:
            return None
        top = [vllm.TopLogProbs(values=each.top_logprobs, token_ids=each.top_token_ids) for each in logprobs]
        return vllm.OutputLogProbs(
            token_logprobs=[each.logprob for each in logprobs],
            token_ids=token_ids,
            top_logprobs=top if self._request.sampling_params.logprobs else (),
        )
