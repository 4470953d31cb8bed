"""One answer out of several streams: what has arrived of it, and what of a response is new."""

from dataclasses import dataclass, field

import grpc

from octavo.client.errors import OctavoError
from octavo.v1 import common_pb2, inference_pb2


@dataclass(slots=True)
class _Sequence:
    """What has arrived of one sequence.

    Attributes:
        token_ids: Tokens.
        text_length: Characters of text.
        ended: Whether its finish reason has come.
        stream_text_length: Where in its text the present stream is. Below `text_length` where the stream began with the
            first token again.
    """

    token_ids: list[int] = field(default_factory=list)
    text_length: int = 0
    ended: bool = False
    stream_text_length: int = 0


class Continuation:
    """Puts the streams of one request together to one, without a gap or a repeat.

    All streams give each sequence the same tokens and the same text, but how these are cut into responses may differ:
    tokens are told apart by position, text by how much of it there was. In a stream that began again sequences may end
    in another order: the response that ends the last one is held until the usage is here, so that both come together.

    Args:
        num_sequences: Of the request.
    """

    def __init__(self, num_sequences: int) -> None:
        self._num_sequences = num_sequences
        self._sequences: dict[int, _Sequence] = {}
        self._computed_prompt_tokens = 0
        self._began_again = False
        self._last: inference_pb2.GenerateResponse | None = None

    def next_positions(self) -> list[int]:
        """For each sequence by its index, the position of the first token that has not arrived."""
        count = max(self._sequences, default=-1) + 1
        return [len(self._sequences[index].token_ids) if index in self._sequences else 0 for index in range(count)]

    def restart(self) -> None:
        """The next response is of a stream that begins with each sequence's first token."""
        for sequence in self._sequences.values():
            self._began_again = True
            sequence.stream_text_length = 0

    def resume(self) -> None:
        """The next response is of a stream that begins at `next_positions`."""
        for sequence in self._sequences.values():
            sequence.stream_text_length = sequence.text_length

    def new_part(self, response: inference_pb2.GenerateResponse) -> inference_pb2.GenerateResponse | None:
        """What of a response has not arrived before: the response itself, a shorter one, or None.

        Raises:
            OctavoError: DATA_LOSS: tokens are missing before it, or came out otherwise before.
        """
        if response.HasField("progress"):
            return response if self._is_new_progress(response.progress) else None
        sequence = self._sequences.get(response.sequence_index)
        if sequence is None:
            sequence = self._sequences[response.sequence_index] = _Sequence()
        known_tokens = self._count_known(sequence, response)
        known_text = sequence.text_length - sequence.stream_text_length
        had_ended = sequence.ended
        sequence.stream_text_length += len(response.text)
        sequence.text_length = max(sequence.text_length, sequence.stream_text_length)
        sequence.token_ids += response.token_ids[known_tokens:]
        ends = response.finish_reason != common_pb2.FINISH_REASON_UNSPECIFIED
        sequence.ended |= ends
        part: inference_pb2.GenerateResponse | None = response
        if known_tokens or known_text or had_ended:
            part = _without_known(response, known_tokens, known_text, ends and not had_ended)
        return self._with_usage(part) if self._began_again and ends else part

    def _count_known(self, sequence: _Sequence, response: inference_pb2.GenerateResponse) -> int:
        """How many tokens from the response's position on have arrived before; it may have fewer."""
        arrived = sequence.token_ids
        known = len(arrived) - response.position
        if known < 0:
            raise _lost(response, f"token {len(arrived)} was awaited, and the server went on with {response.position}")
        if known and response.token_ids[:known] != arrived[response.position :][: len(response.token_ids)]:
            raise _lost(response, "the second try gave other tokens than the first, which are with the caller")
        return known

    def _with_usage(self, part: inference_pb2.GenerateResponse | None) -> inference_pb2.GenerateResponse | None:
        """A sequence's end, or None while it is the request's last response and has no usage yet."""
        if part is None:
            return None
        if part.HasField("usage"):
            if self._last is None:
                return part
            self._last.usage.CopyFrom(part.usage)
            return self._last
        ended = sum(sequence.ended for sequence in self._sequences.values())
        if ended < self._num_sequences:
            return part
        self._last = part
        return None

    def _is_new_progress(self, progress: inference_pb2.PrefillProgress) -> bool:
        if self._sequences or progress.computed_tokens <= self._computed_prompt_tokens:
            return False
        self._computed_prompt_tokens = progress.computed_tokens
        return True


def _lost(response: inference_pb2.GenerateResponse, why: str) -> OctavoError:
    return OctavoError(grpc.StatusCode.DATA_LOSS, f"sequence {response.sequence_index}: {why}")


def _without_known(
    response: inference_pb2.GenerateResponse, known_tokens: int, known_text: int, is_new_end: bool
) -> inference_pb2.GenerateResponse | None:
    """A response without its first tokens and characters; None where that leaves nothing."""
    has_more = len(response.token_ids) > known_tokens or len(response.text) > known_text
    if not (has_more or is_new_end or response.HasField("usage")):
        return None
    rest = inference_pb2.GenerateResponse()
    rest.CopyFrom(response)
    skipped = min(known_tokens, len(response.token_ids))
    rest.position = response.position + known_tokens
    del rest.token_ids[:skipped]
    del rest.logprobs[:skipped]
    rest.text = response.text[known_text:]
    return rest
