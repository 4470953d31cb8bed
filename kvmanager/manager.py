"""The KV manager: takes requests, says what each step computes, and turns results into tokens for the gateways."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from kvmanager.capacity import Capacity
from kvmanager.counters import Counters
from kvmanager.deadlines import Deadlines
from kvmanager.errors import DeadlineExceeded, ExecutorFailed, InvalidRequest, OutOfOrder, QueueFull, RequestError
from kvmanager.events import Event, EventKind, EventSink
from kvmanager.memory import Memory
from kvmanager.request import FinishReason, Request, RequestSpec, Sequence
from kvmanager.scheduler import Limits, Scheduler
from kvmanager.step import Outputs, RequestEnd, SequenceUpdate, StepBatch, StepResult, Usage

PIPELINE_DEPTH = 2
"""Steps under way at once: the next one is on the executor before the result of this one is here."""

MAX_LOSSES = 5
"""So many executors may be lost under a request without a token in between before it is given up, so that a request
that breaks its executor does not do so for ever."""


@dataclass(frozen=True, slots=True)
class MemoryState:
    """Blocks by state (they add up to `num_blocks`) and requests by state."""

    num_blocks: int
    free_blocks: int
    cached_blocks: int
    referenced_blocks: int
    running_requests: int
    waiting_requests: int
    evicted_blocks: int


class KVManager:
    """All memory state of one executor, and the requests that share it.

    Drive it as: `submit`/`abort`/`expire` at any time; `schedule` while it returns batches, send each; `apply` each
    result in order. Times are seconds on one monotonic clock of the caller's. Not thread-safe.
    """

    def __init__(
        self, limits: Limits, *, prefix_caching: bool = True, on_event: EventSink = lambda event: None
    ) -> None:
        self.counters = Counters()
        self.capacity: Capacity | None = None
        self._limits = limits
        self._prefix_caching = prefix_caching
        self._emit = on_event
        self._memory: Memory | None = None
        self._scheduler = Scheduler(limits, self.counters, on_event)
        self._requests: dict[Hashable, Request] = {}
        self._deadlines = Deadlines()
        self._last_step = 0
        self._under_way: deque[int] = deque()
        self._evicted_before = 0

    # The executor comes and goes

    def attach_executor(self, capacity: Capacity, now: float) -> Outputs:
        """Starts with empty memory on an executor; its first step is 1.

        Returns:
            Ends of sequences and requests that can't fit any more, if this executor is smaller than the one before,
            and of requests that may be what breaks executors.
        """
        self.detach_executor(now)
        self.capacity = capacity
        self._memory = Memory(capacity, self._prefix_caching)
        outputs = Outputs()
        for request in list(self._requests.values()):
            try:
                if request.num_losses >= MAX_LOSSES:
                    raise ExecutorFailed(f"{request.num_losses} executors in a row failed while this request ran")
                request.max_length = min(request.max_length, capacity.resolve_max_length(request.spec))
            except RequestError as error:
                self._end(request, outputs, now, error=error)
                continue
            for sequence in request.unfinished():
                if len(sequence.token_ids) >= request.max_length:
                    self._cut(sequence, outputs, now)
        return outputs

    def detach_executor(self, now: float) -> None:
        """The executor is gone, and with it every key and value. Requests wait, with the tokens they have."""
        if self._memory is None:
            return
        self._evicted_before += self._memory.prefix_cache.num_evicted
        self._memory = None
        self._scheduler.executor_lost(now)
        self._under_way.clear()
        self._last_step = 0

    # Requests come and go

    def submit(self, spec: RequestSpec, now: float) -> None:
        """Puts a request into the queue.

        Raises:
            InvalidRequest: it can never be served.
            QueueFull: too many wait already.
        """
        if self.capacity is None:
            raise RuntimeError("no executor has been attached yet")
        if spec.handle in self._requests:
            raise InvalidRequest("request_id", "a request with this handle is running")
        if not 1 <= spec.n <= self._limits.max_sequences:
            raise InvalidRequest("sampling.n", f"n is {spec.n}; it must be from 1 to {self._limits.max_sequences}")
        max_length = self.capacity.resolve_max_length(spec)
        if len(self._scheduler.waiting) >= self._limits.max_waiting_requests:
            raise QueueFull(f"{len(self._scheduler.waiting)} requests are waiting, which is the limit")
        request = Request(spec, max_length, forked=spec.n == 1)
        self._requests[spec.handle] = request
        self._scheduler.new_sequence(request, sample_index=0)
        self._scheduler.waiting.push(request)
        if spec.deadline is not None:
            self._deadlines.add(spec.deadline, spec.handle, self._requests)
        self._emit(Event(EventKind.QUEUED, now, spec.handle))

    def abort(self, handle: Hashable, now: float, sample_index: int | None = None) -> Outputs:
        """Ends a request whose caller has left, or one of its sequences whose text is complete.

        A whole request ends without a word; after its last sequence there is a `RequestEnd`. Unknown handles are
        ignored: the request may have ended by itself meanwhile.
        """
        outputs = Outputs()
        request = self._requests.get(handle)
        if request is None:
            return outputs
        if sample_index is None:
            self._end(request, Outputs(), now, detail="abort")
        elif sample_index < len(request.sequences) and not request.sequences[sample_index].finished:
            self._finish(request.sequences[sample_index], outputs, now)
        return outputs

    def expire(self, now: float) -> Outputs:
        """Ends every request whose deadline has come."""
        outputs = Outputs()
        for handle in self._deadlines.due(now, self._requests):
            self._end(self._requests[handle], outputs, now, error=DeadlineExceeded("the request's time is over"))
        return outputs

    def next_deadline(self) -> float | None:
        """The earliest time at which `expire` may have something to do."""
        return self._deadlines.next()

    # Steps

    def schedule(self, now: float) -> StepBatch | None:
        """Returns the next step to send, or None when there is nothing to do or enough is under way."""
        if self._memory is None or len(self._under_way) >= PIPELINE_DEPTH:
            return None
        batch = self._scheduler.schedule(self._last_step + 1, self._memory, now)
        if batch.empty:
            return None
        self._last_step = batch.step
        self._under_way.append(batch.step)
        self.counters.note_step(self._memory, self._scheduler.live_sequences())
        return batch

    def apply(self, result: StepResult, now: float) -> Outputs:
        """Takes a step's tokens in.

        Raises:
            OutOfOrder: it is not the result that is due; nothing has changed.
        """
        if self._memory is None or not self._under_way or self._under_way[0] != result.step:
            due = self._under_way[0] if self._under_way else "none"
            raise OutOfOrder(f"result of step {result.step}, where the one due is {due}")
        self._under_way.popleft()
        self._memory.release_retired(result.step)
        outputs = Outputs()
        logprobs = result.logprobs or [None] * len(result.token_ids)
        for sequence_id, token_id, token_logprobs in zip(result.sequence_ids, result.token_ids, logprobs, strict=True):
            sequence = self._scheduler.sequences.get(sequence_id)
            if sequence is not None:  # otherwise it ended while this token was under way
                self._append(sequence, token_id, token_logprobs, outputs, now)
        self._emit(Event(EventKind.STEP_DONE, now, None, result.step))
        return outputs

    def _append(self, sequence: Sequence, token_id: int, logprobs: object, outputs: Outputs, now: float) -> None:
        assert self._memory is not None
        request, spec = sequence.request, sequence.request.spec
        position = sequence.num_output
        sequence.token_ids.append(token_id)
        sequence.num_in_flight -= 1
        request.num_losses = 0
        self.counters.generated_tokens += 1
        if sequence.table:
            self._memory.register_full_blocks(sequence)
        reason = None
        if token_id in spec.stop_token_ids and position >= spec.min_tokens:
            reason = FinishReason.STOP
        elif len(sequence.token_ids) >= request.max_length:
            reason = FinishReason.LENGTH
        kept = [] if logprobs is None else [logprobs]
        outputs.updates.append(SequenceUpdate(spec.handle, sequence.sample_index, position, [token_id], kept, reason))
        if position == 0 and sequence.sample_index == 0:
            self._emit(Event(EventKind.FIRST_TOKEN, now, spec.handle))
        if reason is not None:
            self._finish(sequence, outputs, now)

    # Ends

    def _cut(self, sequence: Sequence, outputs: Outputs, now: float) -> None:
        """Ends a sequence that is as long as it may get, with a word to its gateway but no token."""
        handle, reason = sequence.request.spec.handle, FinishReason.LENGTH
        outputs.updates.append(SequenceUpdate(handle, sequence.sample_index, sequence.num_output, [], [], reason))
        self._finish(sequence, outputs, now)

    def _finish(self, sequence: Sequence, outputs: Outputs, now: float) -> None:
        self._scheduler.finish(sequence, self._memory, now)
        request = sequence.request
        if request.forked and not request.unfinished():
            self._end(request, outputs, now)

    def _end(
        self, request: Request, outputs: Outputs, now: float, error: RequestError | None = None, detail: str = ""
    ) -> None:
        """Leaves nothing of a request behind, and says how it ended."""
        self._scheduler.remove(request)
        del self._requests[request.spec.handle]
        for sequence in request.unfinished():
            self._scheduler.drop(sequence, self._memory)
        completion = sum(sequence.num_output for sequence in request.sequences)
        if error is None:
            usage = Usage(len(request.spec.prompt_token_ids), completion, request.num_cached_tokens or 0)
            outputs.ends.append(RequestEnd(request.spec.handle, usage=usage))
        else:
            outputs.ends.append(RequestEnd(request.spec.handle, error=error))
        how = detail or (type(error).__name__ if error else "done")
        self._emit(Event(EventKind.FINISHED, now, request.spec.handle, value=completion, detail=how))

    # Looking in

    @property
    def idle(self) -> bool:
        """No request is here and no step is under way."""
        return not self._requests and not self._under_way

    def memory_state(self) -> MemoryState | None:
        """Where the blocks are; None while no executor is attached."""
        if self._memory is None:
            return None
        pool = self._memory.pool
        return MemoryState(
            pool.num_blocks,
            pool.num_free,
            pool.num_cached,
            pool.num_referenced,
            len(self._scheduler.running),
            len(self._scheduler.waiting),
            self._evicted_before + self._memory.prefix_cache.num_evicted,
        )

    def block_states(self) -> list[tuple[int, bool]]:
        """(reference count, holds cached content) of each block, by block id."""
        if self._memory is None:
            return []
        return [(block.reference_count, block.identity is not None) for block in self._memory.pool.blocks]

    def check_integrity(self) -> None:
        """Asserts every invariant of the queue, the tables, the pool and the prefix cache. Linear in blocks."""
        self._scheduler.check_integrity()
        assert set(self._requests) == {r.spec.handle for r in self._scheduler.waiting} | set(self._scheduler.running)
        if self._memory is not None:
            self._memory.check_integrity(self._scheduler.live_sequences())
