"""Generate calls that are read on a thread while the test does other things, and that check every chunk's form."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from octavo.client import OctavoError, PromptLike, generate_request
from octavo.v1 import common_pb2, inference_pb2
from tests.services.e2e.processes import CHANNEL_OPTIONS, PATIENCE

GENERATE = "/octavo.v1.GenerationService/Generate"


@dataclass
class SequenceAnswer:
    """One sequence's output, put together from its chunks."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[common_pb2.TokenLogprobs] = field(default_factory=list)
    score: float | None = None
    finish_reason: int = common_pb2.FINISH_REASON_UNSPECIFIED


@dataclass
class Answer:
    """All output of one request."""

    request_id: str = ""
    sequences: dict[int, SequenceAnswer] = field(default_factory=dict)
    progress: list[tuple[int, int]] = field(default_factory=list)
    usage: common_pb2.Usage | None = None

    def add(self, chunk: inference_pb2.GenerateResponse) -> None:
        """Takes a response in, and checks that it continues what was there without a gap, a repeat or an end before."""
        assert self.usage is None, "a response after the one with the usage"
        assert chunk.request_id
        assert self.request_id in ("", chunk.request_id)
        self.request_id = chunk.request_id
        if chunk.HasField("progress"):
            assert not self.sequences, "progress after the first token"
            self.progress.append((chunk.progress.computed_tokens, chunk.progress.prompt_tokens))
            return
        sequence = self.sequences.setdefault(chunk.sequence_index, SequenceAnswer())
        assert sequence.finish_reason == common_pb2.FINISH_REASON_UNSPECIFIED, "a chunk after the sequence's last"
        assert chunk.position == len(sequence.token_ids), "a gap or a repeat"
        assert chunk.token_ids or chunk.finish_reason, "an empty chunk"
        assert len(chunk.logprobs) in (0, len(chunk.token_ids))
        sequence.token_ids += chunk.token_ids
        sequence.text += chunk.text
        sequence.logprobs += chunk.logprobs
        if chunk.HasField("score"):
            assert chunk.finish_reason, "a score before the last token"
            sequence.score = chunk.score
        sequence.finish_reason = chunk.finish_reason
        if chunk.HasField("usage"):
            self.usage = chunk.usage

    @property
    def complete(self) -> bool:
        return self.usage is not None and all(each.finish_reason for each in self.sequences.values())

    @property
    def token_ids(self) -> list[int]:
        """Of a request with one sequence."""
        (sequence,) = self.sequences.values()
        return sequence.token_ids

    @property
    def text(self) -> str:
        (sequence,) = self.sequences.values()
        return sequence.text

    @property
    def finish_reason(self) -> int:
        (sequence,) = self.sequences.values()
        return sequence.finish_reason

    def all_scores(self) -> list[float | None]:
        """By sequence index."""
        return [self.sequences[index].score for index in sorted(self.sequences)]

    def all_token_ids(self) -> list[list[int]]:
        """By sequence index."""
        return [self.sequences[index].token_ids for index in sorted(self.sequences)]


class Call:
    """One Generate call under way. `result` and `error` say how it ended."""

    def __init__(
        self,
        channel: grpc.Channel,
        request: inference_pb2.GenerateRequest | bytes,
        deadline: float | None = None,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        generate = channel.unary_stream(GENERATE, response_deserializer=inference_pb2.GenerateResponse.FromString)
        data = request if isinstance(request, bytes) else request.SerializeToString()
        self._call = generate(data, timeout=deadline, metadata=tuple(metadata))
        self._answer = Answer()
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for chunk in self._call:
                with self._changed:
                    self._answer.add(chunk)
                    self._changed.notify_all()
        except (grpc.RpcError, AssertionError) as error:
            self._failure = error
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    @property
    def over(self) -> bool:
        return self._over

    @property
    def num_tokens(self) -> int:
        """Tokens that have arrived, over all sequences."""
        with self._changed:
            return sum(len(sequence.token_ids) for sequence in self._answer.sequences.values())

    def wait_for_tokens(self, count: int) -> None:
        """Returns when so many tokens are here; the call must not end before."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: self._over or self._count() >= count, PATIENCE)
        assert arrived, f"{self._count()} of {count} tokens arrived"
        assert self._count() >= count, f"ended after {self._count()} of {count} tokens: {self._failure!r}"

    def _count(self) -> int:
        return sum(len(sequence.token_ids) for sequence in self._answer.sequences.values())

    def cancel(self) -> None:
        self._call.cancel()

    def result(self) -> Answer:
        """The whole answer of a call that ends well."""
        self._wait()
        if self._failure is not None:
            raise self._failure
        assert self._answer.complete, f"the stream ended silently: {self._answer}"
        return self._answer

    def error(self) -> OctavoError:
        """How a call ends that fails."""
        self._wait()
        assert self._failure is not None, f"it did not fail: {self._answer}"
        if not isinstance(self._failure, grpc.RpcError):
            raise self._failure
        return OctavoError.from_rpc(self._failure)

    def partial_answer(self) -> Answer:
        """What had arrived when the call ended."""
        self._wait()
        return self._answer

    def _wait(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), f"the call still runs after {PATIENCE:g} s, {self._count()} tokens arrived"


class Caller:
    """A client of one gateway."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)

    def start(
        self,
        prompt: PromptLike,
        *,
        request_id: str = "",
        timeout: float | None = None,
        deadline: float | None = None,
        metadata: Mapping[str, str] | None = None,
        priority: int = 0,
        report_progress: bool = False,
        **sampling: Any,
    ) -> Call:
        """Starts a call; greedy unless a temperature is given.

        Args:
            timeout: the request's own field.
            deadline: gRPC's.
        """
        sampling.setdefault("temperature", 0)
        request = generate_request(
            prompt, "", timeout, request_id, sampling, priority=priority, report_progress=report_progress
        )
        return Call(self.channel, request, deadline, tuple((metadata or {}).items()))

    def generate(self, prompt: PromptLike, **arguments: Any) -> Answer:
        """A whole answer."""
        return self.start(prompt, **arguments).result()

    def generate_all(self, requests: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """The whole answers of requests that run at the same time."""
        calls = [self.start(**request) for request in requests]
        return [call.result() for call in calls]

    def send(self, request: inference_pb2.GenerateRequest | bytes, deadline: float | None = None) -> Call:
        """Starts a call with a message, or bytes, as they are."""
        return Call(self.channel, request, deadline)

    def close(self) -> None:
        self.channel.close()
