"""Which sequences compute how many tokens in the next step (iteration-level scheduling, chunked prefill)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from kvmanager.block import Block
from kvmanager.counters import Counters
from kvmanager.decode_set import DecodeSet
from kvmanager.events import Event, EventKind, EventSink
from kvmanager.limits import Limits
from kvmanager.memory import Admission, Memory
from kvmanager.policies import Policy
from kvmanager.queue_bounds import QueueBounds
from kvmanager.request import Request, RequestState, Sequence
from kvmanager.room import Room
from kvmanager.scheduler_checks import check_requests
from kvmanager.sequences import SequenceFactory
from kvmanager.step import NewSequence, StepBatch
from kvmanager.step_load import StepLoad
from kvmanager.waiting import WaitingQueue

SUSPECT_LOSSES = 2
"""A request under which so many executors in a row were lost runs alone until it has a token: if it is what breaks
them, it breaks no more answers than its own."""


class Scheduler:
    """The requests of one executor: waiting, running, or swapped out.

    A step: decodes first, then chunks of admitted prompts, then new requests while the budget lasts. Nothing is
    admitted in a step in which somebody had to wait for memory, and nothing new while anything is swapped out. When
    memory runs out, the last in the policy's order gives all its blocks back, and is fetched from the host tier or
    computed again later (section 4.5 of the paper).
    """

    def __init__(
        self,
        memory: Memory,
        limits: Limits,
        policy: Policy,
        bounds: QueueBounds,
        sequences: SequenceFactory,
        counters: Counters,
        emit: EventSink,
    ) -> None:
        self.memory = memory
        self.limits = limits
        self.waiting = WaitingQueue(policy)
        self.running: dict[Hashable, Request] = {}
        self.swapped: dict[Hashable, Request] = {}
        self.sequences: dict[int, Sequence] = {}
        self.decoding = DecodeSet()
        self.prefilling: dict[int, Sequence] = {}
        self.num_rows = 0
        self.load = StepLoad({})
        self._policy = policy
        self._bounds = bounds
        self._factory = sequences
        self._counters = counters
        self._emit = emit
        self._room = Room(memory, policy, self.running, self.preempt)
        self._stalled: dict[int, Sequence] = {}
        self._expanded: list[Request] = []
        self._duplicated: dict[int, Sequence] = {}
        self._to_forget: list[int] = []
        self._suspects: set[Request] = set()
        self._progress: dict[int, list[tuple[Request, int]]] = {}

    # One step

    def schedule(self, step: int, now: float) -> StepBatch:
        """Builds the next step; it is empty when there is nothing to do."""
        batch = StepBatch(step)
        self.memory.copies.start_step(step)
        enough_memory = self._schedule_decodes(batch, now)
        budget = self.limits.max_batched_tokens - len(batch.row_sequence_ids)
        budget = self._schedule_prefills(batch, budget, now)
        if enough_memory:
            self._admit(batch, budget, now)
        batch.forget, self._to_forget = self._to_forget, []
        self.memory.copies.hand_over(batch)
        if not batch.empty:
            self.memory.untold.hand_over(batch)
        return batch

    # Decodes

    def _schedule_decodes(self, batch: StepBatch, now: float) -> bool:
        """Gives each sequence that waits for its next token a row. Returns False if memory ran short."""
        step = batch.step
        stalled, self._stalled = self._stalled, {}
        for sequence in stalled.values():
            self.decoding.join(sequence, step)
        due = self.decoding.due(step)
        ready, waiting = self._room.make(due, now)
        for sequence in waiting:
            self.decoding.leave(sequence)
            self._stalled[sequence.sequence_id] = sequence
        self._announce_beams(batch)
        self._merge_duplicates(batch)
        leaving = [sequence for sequence in ready if self._prepare(batch, sequence)]
        batch.row_sequence_ids = self.decoding.advance(step)
        batch.num_decodes = len(batch.row_sequence_ids)
        batch.row_num_tokens = [1] * batch.num_decodes
        self.load = StepLoad(self.decoding.tenants)
        for tenant, num_tokens in self.decoding.tenants.items():
            self._policy.served(tenant, 0, num_tokens)
        for sequence in leaving:
            self.decoding.leave(sequence)
        return len(ready) == len(due)

    def _prepare(self, batch: StepBatch, sequence: Sequence) -> bool:
        """Makes room for a due sequence's next token. Returns True if this is its last row for now."""
        change = self.memory.prepare_write(sequence)
        if change is not None:
            index, block = change
            batch.table_edits.append((sequence.sequence_id, index, block.block_id))
        last = sequence.num_rows_left == 1 or sequence.request.beams is not None
        if not last:
            block_size = self.memory.block_size
            until_full = block_size - sequence.num_computed % block_size
            self.decoding.look_at(sequence, batch.step + min(until_full, sequence.num_rows_left - 1))
        return last

    def _announce_beams(self, batch: StepBatch) -> None:
        """Tells the executor how the beams went on since their last step."""
        for request in self._expanded:
            for parent, child in request.branches:
                batch.branches.append((parent.sequence_id, child.sequence_id))
                child.resident = True
            batch.chosen_tokens += [(beam.sequence_id, token_id) for beam, token_id in request.choices]
            request.branches.clear()
            request.choices.clear()
        self._expanded.clear()

    def _merge_duplicates(self, batch: StepBatch) -> None:
        for sequence in self._duplicated.values():
            for index, block in self.memory.merge_duplicates(sequence):
                batch.table_edits.append((sequence.sequence_id, index, block.block_id))
        self._duplicated.clear()

    # Prefills

    def _schedule_prefills(self, batch: StepBatch, budget: int, now: float) -> int:
        """Continues prompts that were admitted in earlier steps. Their blocks are theirs already."""
        for sequence in list(self.prefilling.values()):
            if budget <= 0:
                break
            if self._take_over(sequence):
                self._announce(batch, sequence)
            budget -= self._prefill(batch, sequence, budget, now)
        return budget

    def _take_over(self, sequence: Sequence) -> bool:
        """Skips what other sequences compute already. Returns whether there was any."""
        num_blocks = self.memory.take_over(sequence)
        request = sequence.request
        if num_blocks and request.num_cached_tokens is not None and not request.restarted:
            block_size = self.memory.block_size
            num_matched = sequence.num_computed // block_size
            request.num_cached_tokens += num_blocks * block_size
            self._counters.note_found_later(request, num_matched - num_blocks, num_blocks, block_size)
            request.prefix_match_end = self.memory.lookup.match_end(sequence, num_matched)
        return num_blocks > 0

    def _prefill(self, batch: StepBatch, sequence: Sequence, budget: int, now: float) -> int:
        """Adds a row for as much of a sequence as the budget allows. Returns how much that is."""
        request = sequence.request
        num_tokens = min(sequence.num_to_prefill, budget)
        if not num_tokens:
            return 0
        executor = self.memory.executor
        self._emit(Event(EventKind.PREFILL, now, sequence.handle, batch.step, num_tokens, executor=executor))
        batch.row_sequence_ids.append(sequence.sequence_id)
        batch.row_num_tokens.append(num_tokens)
        sequence.num_computed += num_tokens
        sequence.last_step = batch.step
        self.memory.register_full_blocks(sequence)
        self.note_duplicates(sequence)
        self._policy.served(request.spec.tenant, num_tokens, 0)
        self.load.add_chunk(request.spec.tenant, num_tokens)
        if request.spec.report_progress and not sequence.num_output:
            self._progress.setdefault(batch.step, []).append((request, sequence.num_computed))
        if sequence.num_computed == len(sequence.token_ids):
            self._end_prefill(batch, sequence)
        return num_tokens

    def _end_prefill(self, batch: StepBatch, sequence: Sequence) -> None:
        """The sequence's next token is under way; from the next step on it decodes."""
        del self.prefilling[sequence.sequence_id]
        request = sequence.request
        if request.beams is not None:
            return
        members = [sequence]
        if not request.forked:
            members += self._fork(batch, sequence)
        for member in members:
            if member.num_rows_left > 0:
                self.decoding.join(member, batch.step + 1)

    def _fork(self, batch: StepBatch, parent: Sequence) -> list[Sequence]:
        """The prompt is computed: from its last row on there are n sequences (parallel sampling, section 4.4)."""
        request = parent.request
        request.forked = True
        indices = range(1, request.spec.num_sequences)
        children = [self._factory.add(request, index, parent.token_ids[:]) for index in indices]
        for child in children:
            self.memory.fork(parent, child)
            child.last_step = batch.step
            child.resident = True
            self.sequences[child.sequence_id] = child
        if children:
            batch.forks[parent.sequence_id] = [child.sequence_id for child in children]
        return children

    # Admission

    def _admit(self, batch: StepBatch, budget: int, now: float) -> None:
        """Starts requests in order while the budget, the sequence limit and the pool allow it."""
        if any(map(_suspect, self._suspects)):
            return
        limited: set[str] = set()  # tenants that have to wait for themselves
        while budget > 0 and (request := self._next(limited)) is not None:
            reason, missing, admission = self._consider(request)
            if reason:
                self._wait(request, reason, missing, now)
            if reason == "tenant_limit":
                limited.add(request.spec.tenant)
                continue
            if admission is None:
                return
            budget -= self._start(batch, request, admission, budget, now)
            if _suspect(request):
                return

    def _next(self, limited: set[str]) -> Request | None:
        """Whose turn it is: nothing new goes ahead of what is swapped out."""
        if self.swapped:
            swapped = [request for request in self.swapped.values() if request.spec.tenant not in limited]
            if swapped:
                return min(swapped, key=self._policy.rank)
        return self.waiting.head(without=limited)

    def _consider(self, request: Request) -> tuple[str, int, Admission | None]:
        """Why the request can't start now and how much is missing, or where its blocks would come from."""
        if self._has_row_under_way(request):
            return "", 0, None  # preempted in the step before: the token that is under way comes first
        if _suspect(request) and self.running:
            return "isolation", 0, None
        if (num_rows := self.num_rows + request.most_rows) > self.limits.max_sequences:
            return "max_sequences", num_rows - self.limits.max_sequences, None
        available = self.memory.pool.num_available
        if self.running and request.waiting_reason == "blocks" and available <= request.available_then:
            return "blocks", request.num_missing, None  # no more than when it was looked at last
        request.available_then = available
        admission = self.memory.plan(request)
        # Some blocks are kept back, so that a new request does not at once preempt itself.
        headroom = self.memory.pool.num_blocks // 100 if self.running else 0
        if reason := self.memory.shortage(admission.charges, spare=headroom):
            return reason, self.memory.missing(admission.charges, spare=headroom), None
        return "", 0, admission

    def _start(self, batch: StepBatch, request: Request, admission: Admission, budget: int, now: float) -> int:
        """Takes the request's blocks and puts what the budget allows into the step. Returns how much that is."""
        swapped = request.state is RequestState.SWAPPED
        self.memory.admit(admission)
        self.waiting.remove(request)
        self.swapped.pop(request.spec.handle, None)
        self.running[request.spec.handle] = request
        request.num_rows = request.most_rows
        self.num_rows += request.num_rows
        if _suspect(request):
            self._suspects.add(request)
        self._note_admission(request, admission, now)
        num_tokens = 0
        for sequence in request.unfinished():
            self._take_over(sequence)
            self._announce(batch, sequence)
            if swapped and request.forked and sequence.num_computed == len(sequence.token_ids) - 1:
                self.decoding.join(sequence, batch.step + 1)  # where it left off; its block may be shared
            else:
                self.prefilling[sequence.sequence_id] = sequence
                num_tokens += self._prefill(batch, sequence, budget - num_tokens, now)
        return num_tokens

    def _announce(self, batch: StepBatch, sequence: Sequence) -> None:
        sequence.resident = True
        self.sequences[sequence.sequence_id] = sequence
        batch.new_sequences.append(NewSequence.of(sequence))

    # Requests come and go

    def enqueue(self, request: Request) -> None:
        """Puts a request in line."""
        self.waiting.push(request)
        request.waiting_reason = ""

    def look_again(self) -> None:
        """Whatever requests waited for may be there now."""
        for request in (*self.waiting, *self.swapped.values()):
            request.waiting_reason = ""

    def expand(self, request: Request) -> None:
        """The beams of a request go on: `request.branches` and `request.choices` say how."""
        self._expanded.append(request)
        for sequence in request.sequences:
            self.sequences[sequence.sequence_id] = sequence
            self._stalled[sequence.sequence_id] = sequence  # they decode again from the next step on

    def note_duplicates(self, sequence: Sequence) -> None:
        """Blocks of the sequence that another one holds as well are merged in the next step."""
        if sequence.duplicates:
            self._duplicated[sequence.sequence_id] = sequence

    def drop(self, sequence: Sequence) -> None:
        """Ends a sequence and takes its blocks back."""
        sequence.finished = True
        self.sequences.pop(sequence.sequence_id, None)
        self._vacate(sequence)
        self.memory.release(sequence)

    def finish(self, sequence: Sequence, now: float) -> None:
        """Ends one sequence of a request that may go on with others."""
        self.drop(sequence)
        request = sequence.request
        if request.state is not RequestState.RUNNING:
            return
        request.num_rows -= 1
        self.num_rows -= 1
        if any(each.leader is sequence and each.follows for each in request.unfinished()):
            self.preempt(request, now, "leader")  # nobody fills their prompt blocks any more

    def remove(self, request: Request) -> None:
        """Takes a request that is over out of wherever it is, and its sequences' blocks back."""
        for sequence in request.unfinished():
            self.drop(sequence)
        self._leave(request)
        self.waiting.remove(request)
        self.swapped.pop(request.spec.handle, None)

    def _leave(self, request: Request) -> None:
        """It does not run any more."""
        if self.running.pop(request.spec.handle, None) is not None:
            self.num_rows -= request.num_rows
        self._suspects.discard(request)
        if request.beams is not None:
            request.branches.clear()
            request.choices.clear()
            if request in self._expanded:
                self._expanded.remove(request)

    def preempt(self, request: Request, now: float, cause: str, beneficiary: Request | None = None) -> None:
        """Takes all blocks of a request back: they are moved to the host tier, or computed again later.

        Args:
            cause: as of `EventKind.PREEMPTED`.
            beneficiary: whom it makes room for.
        """
        self._leave(request)
        sequences = request.unfinished()
        for sequence in sequences:
            self._vacate(sequence)
            if request.beams is not None:  # its candidates come once more
                sequence.candidates = None
                sequence.num_computed = min(sequence.num_computed, len(sequence.token_ids) - 1)
        swap = self.memory.can_swap_out(request)
        moved: dict[Block, Block] = {}
        for sequence in sequences:
            if swap:
                self.memory.swap_out(sequence, moved)
            else:
                self.memory.release(sequence)
                sequence.reset()
                request.restarted = True
        if swap:
            self.swapped[request.spec.handle] = request
        else:
            self.waiting.push(request)
        request.waiting_reason = ""
        self._counters.note_state(request, RequestState.SWAPPED if swap else RequestState.PREEMPTED, now)
        request.times.preemptions += 1
        self._counters.preemptions += 1
        self._counters.preemptions_by_swap += swap
        how = "swap" if swap else "recompute"
        other = None if beneficiary is None else beneficiary.spec.handle
        self._emit(Event(EventKind.PREEMPTED, now, request.spec.handle, detail=how, cause=cause, other=other))

    def _vacate(self, sequence: Sequence) -> None:
        """The sequence gets no more rows, and the executor forgets it."""
        self.decoding.leave(sequence)
        self.prefilling.pop(sequence.sequence_id, None)
        self._stalled.pop(sequence.sequence_id, None)
        self._duplicated.pop(sequence.sequence_id, None)
        if sequence.resident:
            self._to_forget.append(sequence.sequence_id)
            sequence.resident = False

    def hand_over(self, request: Request) -> bool:
        """Gives up a waiting request for another executor to take; not while a token of it is under way."""
        if self._has_row_under_way(request):
            return False
        self.waiting.remove(request)
        self._detach(request)
        return True

    def _has_row_under_way(self, request: Request) -> bool:
        finished = self.memory.fence.last_finished_step
        return any(sequence.last_step > finished for sequence in request.unfinished())

    def hand_over_waiting(self, begun: bool = True) -> list[Request]:
        """Gives up all waiting requests that it can; those that have run before only where that is asked for."""
        waiting = [each for each in self.waiting if begun or each.state is RequestState.WAITING]
        return [request for request in waiting if self.hand_over(request)]

    def hand_over_all(self, now: float) -> list[Request]:
        """The executor is lost: gives up all requests, with the tokens that have arrived."""
        for request in self.running.values():
            request.num_losses += 1
            request.times.preemptions += 1
            self._counters.preemptions += 1
            self._emit(Event(EventKind.PREEMPTED, now, request.spec.handle, detail="executor lost"))
        holding = [*self.running.values(), *self.swapped.values()]
        for request in holding:
            self._counters.note_state(request, RequestState.PREEMPTED, now)
        requests = [*holding, *self.waiting]
        for request in requests:
            self._detach(request)
            # A fork whose first tokens never arrived is undone: the prompt is computed once again for all.
            if request.beams is None and request.forked and not any(each.num_output for each in request.sequences):
                del request.sequences[1:]
                request.forked = request.spec.num_sequences == 1
        return requests

    def _detach(self, request: Request) -> None:
        """Nothing of the request refers to this executor any more."""
        request.branches.clear()
        request.choices.clear()
        request.restarted = request.num_cached_tokens is not None
        for sequence in request.unfinished():
            sequence.table, sequence.host_table = [], []
            sequence.reset()
            sequence.last_step = sequence.due_step = 0
            sequence.next_check = 0
            self.sequences.pop(sequence.sequence_id, None)

    def progress_of(self, step: int) -> list[tuple[Request, int]]:
        """Prompts that this step computed a part of, and how much of each has been computed with it."""
        return self._progress.pop(step, []) if self._progress else []

    def check_integrity(self) -> None:
        """Asserts that every request is in one place and every sequence in its state's shape."""
        check_requests(self.waiting, self.running, self.swapped)
        assert all(not sequence.finished for sequence in self.sequences.values())
        assert self.num_rows == sum(request.num_rows for request in self.running.values())
        assert self.num_rows <= self.limits.max_sequences
        placed = [*self.decoding.sequences.values(), *self.prefilling.values(), *self._stalled.values()]
        assert len(placed) == len(set(placed)), "a sequence is in two places"
        assert all(sequence.request.state is RequestState.RUNNING for sequence in placed)

    def live_sequences(self) -> Iterator[Sequence]:
        """Sequences that hold device blocks."""
        return (s for request in self.running.values() for s in request.sequences if not s.finished)

    def swapped_sequences(self) -> Iterator[Sequence]:
        """Sequences that hold host blocks."""
        return (s for request in self.swapped.values() for s in request.sequences if not s.finished)

    # Events

    def _note_admission(self, request: Request, admission: Admission, now: float) -> None:
        num_cached = request.unfinished()[0].num_computed
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_cached
            request.prefix_match_end = admission.match_end
            num_from_host = self.memory.tokens_from_host(admission)
            self._counters.note_admission(request, num_cached, num_from_host, self.memory.block_size)
        self._bounds.left(request.spec.handle, now)
        self._counters.note_state(request, RequestState.RUNNING, now)
        executor = self.memory.executor
        self._emit(Event(EventKind.ADMITTED, now, request.spec.handle, value=num_cached, executor=executor))

    def _wait(self, request: Request, reason: str, missing: int, now: float) -> None:
        request.num_missing = missing
        if request.waiting_reason != reason:
            request.waiting_reason = reason
            self._emit(Event(EventKind.WAITED, now, request.spec.handle, detail=reason, amount=missing))


def _suspect(request: Request) -> bool:
    return request.num_losses >= SUSPECT_LOSSES
