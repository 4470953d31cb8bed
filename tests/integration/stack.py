"""KV manager and executors in one process, joined as on the wire: every message is encoded, decoded and checked."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from dataclasses import replace as changed

import torch

from executor.executor import Executor
from kvmanager.capacity import Capacity
from kvmanager.cost_model import Preemption
from kvmanager.events import Event, EventKind
from kvmanager.limits import Limits
from kvmanager.manager import KVManager
from kvmanager.memory import Memory
from kvmanager.replica import Replica
from kvmanager.request import FinishReason, Sequence
from kvmanager.spec import BeamParams, EarlyStopping
from kvmanager.step import Outputs, Speeds, StepBatch, Usage
from octavo.v1 import common_pb2, executor_pb2, kvmanager_pb2
from services.executor.codec import decode_batch, encode_description, encode_result
from services.kvmanager.codec import decode_capacity, decode_result, decode_speeds, decode_submission, encode_batch
from services.rpc.columns import pack_int32
from tests.integration.models import Model

FIRST = "executor-0"
MOST_TOKENS = 1024
"""That the blocks of a large pool hold: every step all of them are checked."""
FAST_COPIES = Speeds(100.0, 1e6, 1e6, 1e6)
"""Whatever can be copied is. A tiny model computes tokens so fast that measured speeds say now this, now that."""

_EARLY_STOPPING = {
    EarlyStopping.HEURISTIC: common_pb2.EARLY_STOPPING_HEURISTIC,
    EarlyStopping.FIRST: common_pb2.EARLY_STOPPING_FIRST,
    EarlyStopping.NEVER: common_pb2.EARLY_STOPPING_NEVER,
}


@dataclass
class Answer:
    """What a gateway has heard of one request; lists have an entry for each of its sequences."""

    token_ids: list[list[int]]
    reasons: list[FinishReason | None]
    scores: list[float | None]
    usage: Usage | None = None


@dataclass
class Link:
    """One executor, with the steps that have been sent to it and not been run yet."""

    executor: Executor
    epoch: int
    under_way: deque[StepBatch] = field(default_factory=deque)


class Stack:
    """Both cores, two steps deep as in the services. The memory of the executors is poisoned at first.

    Args:
        num_blocks, num_host_blocks: the KV manager uses so many of each executor's; None: enough.
        speeds: instead of those that the executors measure.
    """

    def __init__(
        self,
        model: Model,
        block_size: int = 16,
        *,
        num_blocks: int | None = None,
        num_host_blocks: int = 0,
        num_executors: int = 1,
        max_batched_tokens: int = 64,
        max_sequences: int = 64,
        preemption: Preemption = Preemption.AUTO,
        speeds: Speeds | None = None,
    ) -> None:
        self.events: list[Event] = []
        self.batches: list[tuple[str, StepBatch]] = []
        self.answers: dict[int, Answer] = {}
        self.manager = KVManager(
            Limits(max_batched_tokens, max_sequences, max_waiting_requests=64),
            preemption=preemption,
            on_event=self.events.append,
        )
        self._model = model
        self._block_size = block_size
        self._num_blocks = num_blocks or MOST_TOKENS // block_size
        self._num_host_blocks = num_host_blocks
        self._speeds = speeds
        self._links: dict[str, Link] = {}
        for index in range(num_executors):
            self.attach(index)

    # Executors

    def attach(self, index: int) -> None:
        """An executor joins, or comes back with nothing in its memory."""
        executor = self._model.executor(self._block_size, index)
        executor._runner.arena.data.view(torch.uint8).fill_(0xFF)
        executor._mover._host.data.view(torch.uint8).fill_(0xFF)
        epoch = executor.epoch + 1
        message = executor_pb2.DescribeResponse.FromString(
            encode_description(executor.info, epoch, executor.speeds).SerializeToString()
        )
        capacity = decode_capacity(message)
        assert capacity.num_blocks >= self._num_blocks
        assert capacity.num_host_blocks >= self._num_host_blocks
        capacity = Capacity(self._num_blocks, self._block_size, capacity.max_model_len, self._num_host_blocks)
        name = f"executor-{index}"
        self._take(self.manager.attach_executor(name, capacity, 0.0, self._speeds or decode_speeds(message.speeds)))
        self._links[name] = Link(executor, epoch)

    def lose(self, name: str) -> None:
        """An executor is gone, with the steps that were under way on it."""
        del self._links[name]
        self._take(self.manager.detach_executor(name, now=0.0))
        self.manager.check_integrity()

    # Requests

    def submit(
        self,
        handle: int,
        prompt: list[int],
        max_tokens: int,
        *,
        n: int = 1,
        best_of: int = 0,
        beam: BeamParams | None = None,
        stop_token_ids: tuple[int, ...] = (),
        min_tokens: int = 0,
        **sampling: object,
    ) -> None:
        """As a gateway submits it. Greedy, unless `sampling` says something else."""
        params = common_pb2.SamplingParams(
            **({"temperature": 0.0, "stop_token_ids": stop_token_ids, "min_tokens": min_tokens} | sampling)
        )
        message = kvmanager_pb2.Submission(
            handle=handle,
            prompt_token_ids=pack_int32(prompt),
            n=n,
            best_of=best_of,
            beam_search=beam and _encode_beams(beam),
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_token_ids=stop_token_ids,
            sampling=params,
        )
        received = kvmanager_pb2.Submission.FromString(message.SerializeToString())
        self.manager.submit(decode_submission(received, session=0, now=0.0), now=0.0)
        self.answers[handle] = Answer([[] for _ in range(n)], [None] * n, [None] * n)

    # Steps

    def step(self) -> None:
        """On each executor: sends what there is to send, then takes one result."""
        for name, link in self._links.items():
            self._send(name, link)
        for name, link in self._links.items():
            if link.under_way:
                self._receive(name, link)

    def _send(self, name: str, link: Link) -> None:
        while (batch := self.manager.schedule(name, now=0.0)) is not None:
            link.under_way.append(batch)
            self.batches.append((name, batch))
        self.manager.check_integrity()

    def _receive(self, name: str, link: Link) -> None:
        request = encode_batch(link.under_way.popleft(), link.epoch, traces=[])
        message = executor_pb2.ExecuteRequest.FromString(request.SerializeToString())
        answer = encode_result(link.executor.step(decode_batch(message.batch)), duration_us=0)
        result = decode_result(executor_pb2.ExecuteResponse.FromString(answer.SerializeToString()).result)
        if self._speeds:
            result = changed(result, speeds=None)
        self._take(self.manager.apply(name, result, now=0.0))
        self.manager.check_integrity()

    def run(self) -> None:
        """Until every request has ended, and nothing is left behind."""
        while not self.manager.idle:
            self.step()
        for replica in self.manager.replicas.values():
            assert replica.memory.pool.num_referenced == 0
            assert replica.memory.host.pool.num_referenced == len(replica.memory.copies.held_on_host)
        assert all(answer.usage for answer in self.answers.values())

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """Greedy output of prompts that are submitted together."""
        for handle, prompt in enumerate(prompts):
            self.submit(handle, prompt, max_tokens)
        self.run()
        return [self.tokens(handle) for handle in range(len(prompts))]

    # What has been heard

    def _take(self, outputs: Outputs) -> None:
        for sequence in outputs.tokens:
            _, handle = sequence.handle
            self._extend(handle, sequence.sample_index, sequence.num_output - 1, [sequence.token_ids[-1]])
        for update in outputs.updates:
            _, handle = update.handle
            self._extend(handle, update.sample_index, update.position, update.token_ids)
            self.answers[handle].reasons[update.sample_index] = update.finish_reason
            self.answers[handle].scores[update.sample_index] = update.score
        for end in outputs.ends:
            assert end.error is None
            self.answers[end.handle[1]].usage = end.usage

    def _extend(self, handle: int, index: int, position: int, token_ids: list[int]) -> None:
        answer = self.answers[handle]
        assert answer.reasons[index] is None, "tokens after the last one"
        assert position == len(answer.token_ids[index]), "a gap or a repeat"
        answer.token_ids[index] += token_ids

    def tokens(self, handle: int) -> list[int]:
        """Of the request's first sequence."""
        return self.answers[handle].token_ids[0]

    def cached_tokens(self, handle: int) -> int:
        usage = self.answers[handle].usage
        assert usage is not None
        return usage.cached_tokens

    def preempted(self, handle: int) -> list[str]:
        """How the request was preempted, each time."""
        return [
            event.detail for event in self.events if event.kind is EventKind.PREEMPTED and event.handle == (0, handle)
        ]

    # Looking in

    @property
    def replica(self) -> Replica:
        return self.manager.replicas[FIRST]

    @property
    def memory(self) -> Memory:
        return self.replica.memory

    def sequences(self, handle: int) -> list[Sequence]:
        """A running request's, those that have not finished."""
        request = self.replica.scheduler.running.get((0, handle))
        return request.unfinished() if request else []


def _encode_beams(beam: BeamParams) -> kvmanager_pb2.BeamSearch:
    return kvmanager_pb2.BeamSearch(
        width=beam.width, length_penalty=beam.length_penalty, early_stopping=_EARLY_STOPPING[beam.early_stopping]
    )
