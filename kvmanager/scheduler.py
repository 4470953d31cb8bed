"""Which sequences compute how many tokens in the next step (iteration-level scheduling, chunked prefill)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import count

from kvmanager.counters import Counters
from kvmanager.events import Event, EventKind, EventSink
from kvmanager.memory import Memory
from kvmanager.queue import FcfsQueue
from kvmanager.request import Request, Sequence
from kvmanager.step import NewSequence, StepBatch

SUSPECT_LOSSES = 2
"""A request under which so many executors in a row were lost runs alone until it has a token: if it is what breaks
them, it breaks no more answers than its own."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a step and the queue may hold.

    Attributes:
        max_batched_tokens: tokens computed in one step, decodes and prefill chunks together.
        max_sequences: sequences running at once.
        max_waiting_requests: requests in the queue.
    """

    max_batched_tokens: int
    max_sequences: int
    max_waiting_requests: int

    def __post_init__(self) -> None:
        if self.max_batched_tokens < self.max_sequences:
            raise ValueError(
                f"max_batched_tokens is {self.max_batched_tokens}; it must reach max_sequences, {self.max_sequences}, "
                "or not every running sequence could get its token in a step"
            )


class Scheduler:
    """The queue of waiting requests and the running ones, in order of arrival.

    Rules: decodes first, then chunks of admitted prompts, then new requests while the budget lasts. Nothing is
    admitted in a step in which somebody had to wait for memory. When memory runs out the latest arrival gives all its
    blocks back and is computed again later (preemption by recomputation, section 4.5).
    """

    def __init__(self, limits: Limits, counters: Counters, emit: EventSink) -> None:
        self.limits = limits
        self.waiting = FcfsQueue()
        self.running: dict[Hashable, Request] = {}
        self.sequences: dict[int, Sequence] = {}
        self._counters = counters
        self._emit = emit
        self._sequence_ids = count(1)
        self._to_forget: list[int] = []

    # One step

    def schedule(self, step: int, memory: Memory, now: float) -> StepBatch:
        """Builds the next step; it is empty when there is nothing to do."""
        batch = StepBatch(step)
        budget = self.limits.max_batched_tokens
        budget, short_of_memory = self._schedule_decodes(batch, memory, budget, now)
        budget = self._schedule_prefills(batch, memory, budget, now)
        if not short_of_memory:
            self._admit(batch, memory, budget, now)
        batch.forget, self._to_forget = self._to_forget, []
        return batch

    def _schedule_decodes(self, batch: StepBatch, memory: Memory, budget: int, now: float) -> tuple[int, bool]:
        """Gives each sequence that waits for its next token a row. Returns the budget left, and if memory ran short."""
        short_of_memory = False
        for request in list(self.running.values()):
            if request.spec.handle not in self.running:
                break  # preempted just now, and so is everybody behind it
            decodes = [sequence for sequence in request.sequences if sequence.num_to_compute == 1][:budget]
            if not decodes:
                continue
            num_needed = memory.blocks_to_write(decodes)
            if num_needed:
                if short_of_memory:
                    continue  # those behind must not take what the first in line is waiting for
                short_of_memory = num_needed > memory.pool.num_available
                if short_of_memory and not self._make_room(num_needed, request, memory, now):
                    continue
            for sequence in decodes:
                self._decode(batch, memory, sequence)
            budget -= len(decodes)
        return budget, short_of_memory

    def _schedule_prefills(self, batch: StepBatch, memory: Memory, budget: int, now: float) -> int:
        """Continues prompts that were admitted in earlier steps. Their blocks are theirs already."""
        for request in self.running.values():
            for sequence in request.sequences:
                num_tokens = sequence.num_to_compute
                if num_tokens > 1 and budget > 0:
                    budget -= self._prefill(batch, memory, sequence, min(num_tokens, budget), now)
        return budget

    def _admit(self, batch: StepBatch, memory: Memory, budget: int, now: float) -> None:
        """Starts waiting requests in order while the budget, the sequence limit and the pool allow it."""
        if budget <= 0 or not self.waiting or any(_suspect(request) for request in self.running.values()):
            return
        num_sequences = sum(request.num_reserved_sequences for request in self.running.values())
        while budget > 0 and (request := self.waiting.head()) is not None:
            if any(sequence.num_in_flight for sequence in request.unfinished()):
                return  # preempted in the step before: the token that is under way comes first
            if _suspect(request) and self.running:
                return self._wait(request, "isolation", now)
            num_sequences += request.num_reserved_sequences
            if num_sequences > self.limits.max_sequences:
                return self._wait(request, "max_sequences", now)
            admission = memory.plan(request)
            if admission.num_needed + self._headroom(memory) > memory.pool.num_available:
                return self._wait(request, "blocks", now)
            memory.admit(admission)
            self.waiting.remove(request)
            self.running[request.spec.handle] = request
            self._note_admission(request, now)
            for sequence in request.unfinished():
                num_tokens = min(sequence.num_to_compute, budget)
                self._announce(batch, sequence)
                if num_tokens:
                    budget -= self._prefill(batch, memory, sequence, num_tokens, now)
            if _suspect(request):
                return

    def _headroom(self, memory: Memory) -> int:
        """Blocks kept back at admission, so that a new request does not at once preempt itself."""
        return memory.pool.num_blocks // 100 if self.running else 0

    # Rows

    def _decode(self, batch: StepBatch, memory: Memory, sequence: Sequence) -> None:
        change = memory.prepare_write(sequence)
        if change is not None:
            index, source = change
            block = sequence.table[index]
            batch.table_edits.append((len(batch.row_sequence_ids), index, block.block_id))
            if source is not None:
                batch.block_copies.append((source.block_id, block.block_id))
                self._counters.copied_blocks += 1
        self._add_row(batch, memory, sequence, 1)

    def _prefill(self, batch: StepBatch, memory: Memory, sequence: Sequence, num_tokens: int, now: float) -> int:
        handle = sequence.request.spec.handle
        self._emit(Event(EventKind.PREFILL, now, handle, batch.step, num_tokens))
        self._add_row(batch, memory, sequence, num_tokens)
        memory.register_full_blocks(sequence)
        return num_tokens

    def _add_row(self, batch: StepBatch, memory: Memory, sequence: Sequence, num_tokens: int) -> None:
        batch.row_sequence_ids.append(sequence.sequence_id)
        batch.row_num_tokens.append(num_tokens)
        sequence.num_computed += num_tokens
        sequence.last_step = batch.step
        if sequence.num_computed == len(sequence.token_ids) + sequence.num_in_flight:
            sequence.num_in_flight += 1
            if not sequence.request.forked:
                self._fork(batch, memory, sequence)

    def _announce(self, batch: StepBatch, sequence: Sequence) -> None:
        spec = sequence.request.spec
        sequence.resident = True
        self.sequences[sequence.sequence_id] = sequence
        batch.new_sequences.append(
            NewSequence(
                sequence.sequence_id,
                list(sequence.token_ids),
                len(spec.prompt_token_ids),
                sequence.num_computed,
                [block.block_id for block in sequence.table],
                spec.sampling,
                sequence.sample_index,
            )
        )

    def _fork(self, batch: StepBatch, memory: Memory, parent: Sequence) -> None:
        """The prompt is computed: from its last row on there are n sequences (parallel sampling, section 4.4)."""
        request = parent.request
        request.forked = True
        children = [self.new_sequence(request, sample_index) for sample_index in range(1, request.spec.n)]
        for child in children:
            memory.fork(parent, child)
            child.num_in_flight = 1
            child.last_step = batch.step
            child.resident = True
            self.sequences[child.sequence_id] = child
        batch.forks[parent.sequence_id] = [child.sequence_id for child in children]

    # Starting and ending

    def new_sequence(self, request: Request, sample_index: int) -> Sequence:
        """Adds a sequence to a request. Ids are never used again."""
        sequence = Sequence(next(self._sequence_ids), request, sample_index)
        request.sequences.append(sequence)
        return sequence

    def drop(self, sequence: Sequence, memory: Memory | None) -> None:
        """Ends a sequence and takes its blocks back."""
        sequence.finished = True
        self.sequences.pop(sequence.sequence_id, None)
        self._vacate(sequence, memory)

    def finish(self, sequence: Sequence, memory: Memory | None, now: float) -> None:
        """Ends one sequence of a request that may go on with others."""
        self.drop(sequence, memory)
        followers = [s for s in sequence.request.unfinished() if s.leader is sequence]
        if memory and any(sequence.num_computed < follower.leader_tokens for follower in followers):
            self.preempt(sequence.request, memory, now)  # nobody fills their prompt blocks any more

    def remove(self, request: Request) -> None:
        """Takes a request that is over out of the queue or the running ones."""
        self.waiting.remove(request)
        self.running.pop(request.spec.handle, None)

    def preempt(self, request: Request, memory: Memory | None, now: float) -> None:
        """Takes all blocks of a request back; it starts again from the tokens it has.

        Without a memory (the executor is gone) there is nothing to take back.
        """
        self.running.pop(request.spec.handle, None)
        for sequence in request.unfinished():
            self._vacate(sequence, memory)
            sequence.reset()
        self.waiting.push_preempted(request)
        request.waiting_reason = ""
        self._counters.preemptions += 1
        self._emit(
            Event(EventKind.PREEMPTED, now, request.spec.handle, detail="recompute" if memory else "executor lost")
        )

    def _vacate(self, sequence: Sequence, memory: Memory | None) -> None:
        if memory is None:
            sequence.table = []
            return
        if sequence.resident:
            self._to_forget.append(sequence.sequence_id)
            sequence.resident = False
        memory.release(sequence)

    def _make_room(self, num_needed: int, request: Request, memory: Memory, now: float) -> bool:
        """Preempts from the latest arrival backwards until this request gets its blocks.

        Returns:
            False when it has to wait: for steps under way that still use what was given back, or because its own
            turn to be preempted came.
        """
        while memory.pool.num_available + memory.num_retiring() < num_needed:
            victim = next(reversed(self.running.values()))
            self.preempt(victim, memory, now)
            if victim is request:
                return False
        return memory.pool.num_available >= num_needed

    def executor_lost(self, now: float) -> None:
        """Everything that ran goes back to the queue, with the tokens that have arrived."""
        self._to_forget.clear()
        for request in reversed(list(self.running.values())):
            request.num_losses += 1
            self.preempt(request, None, now)
        for sequence in self.sequences.values():
            sequence.num_in_flight = 0
            sequence.last_step = 0
        for request in self.waiting:
            self._unfork(request)

    def _unfork(self, request: Request) -> None:
        """Undoes a fork whose first tokens never arrived: the prompt is computed once again for all."""
        if request.spec.n > 1 and request.forked and not any(s.num_output for s in request.sequences):
            for child in request.sequences[1:]:
                del self.sequences[child.sequence_id]
            del request.sequences[1:]
            request.forked = False

    def check_integrity(self) -> None:
        """Asserts that every request is in one place and every sequence in its state's shape."""
        waiting = list(self.waiting)
        assert not {request.spec.handle for request in waiting} & set(self.running)
        for request in waiting:
            assert request.unfinished(), "a finished request waits"
            assert not any(sequence.table for sequence in request.sequences), "a waiting request holds blocks"
        for request in self.running.values():
            assert request.unfinished(), "a finished request runs"
            for sequence in request.sequences:
                assert sequence.finished or sequence.table
                assert not (sequence.finished and sequence.table)
        assert all(not sequence.finished for sequence in self.sequences.values())
        num_sequences = sum(request.num_reserved_sequences for request in self.running.values())
        assert num_sequences <= self.limits.max_sequences

    def live_sequences(self) -> Iterator[Sequence]:
        """Sequences that hold blocks."""
        return (s for request in self.running.values() for s in request.sequences if not s.finished)

    # Events

    def _note_admission(self, request: Request, now: float) -> None:
        num_cached = request.unfinished()[0].num_computed
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_cached
            self._counters.prompt_tokens += len(request.spec.prompt_token_ids)
            self._counters.cached_prompt_tokens += num_cached
        self._emit(Event(EventKind.ADMITTED, now, request.spec.handle, value=num_cached))

    def _wait(self, request: Request, reason: str, now: float) -> None:
        if request.waiting_reason != reason:
            request.waiting_reason = reason
            self._emit(Event(EventKind.WAITED, now, request.spec.handle, detail=reason))


def _suspect(request: Request) -> bool:
    return request.num_losses >= SUSPECT_LOSSES
