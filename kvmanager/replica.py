"""One executor: its memory, its requests, and the steps that are under way on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kvmanager.counters import WASTE_INTERVAL, Counters
from kvmanager.endings import end_request, reason_to_finish, send_best_beams, send_best_samples
from kvmanager.errors import InvalidRequest, OutOfOrder, RequestError
from kvmanager.events import Event, EventKind, EventSink
from kvmanager.memory import Memory
from kvmanager.request import FinishReason, Request, Sequence
from kvmanager.scheduler import Scheduler
from kvmanager.sequences import SequenceFactory
from kvmanager.step import Outputs, Progress, SequenceUpdate, StepBatch, StepResult
from kvmanager.step_load import StepLoad

PIPELINE_DEPTH = 2
"""Steps under way at once: the next one is on the executor before the result of this one is here."""

OnPrefixComputed = Callable[[Request, "Replica", float], RequestError | None]


class Replica:
    """Schedules one executor and takes its results in.

    Args:
        name: the executor's.
        on_prefix_computed: told of a request that is to be pinned, once its prompt is computed and still in memory.
    """

    def __init__(
        self,
        name: str,
        memory: Memory,
        scheduler: Scheduler,
        sequences: SequenceFactory,
        counters: Counters,
        emit: EventSink,
        on_prefix_computed: OnPrefixComputed,
    ) -> None:
        self.name = name
        self.memory = memory
        self.scheduler = scheduler
        self.draining = False
        self.under_way: deque[int] = deque()
        self.last_load = StepLoad({})
        self._factory = sequences
        self._counters = counters
        self._emit = emit
        self._on_prefix_computed = on_prefix_computed
        self._last_step = 0

    @property
    def idle(self) -> bool:
        """It has no request and no step under way."""
        scheduler = self.scheduler
        return not (scheduler.running or scheduler.swapped or len(scheduler.waiting) or self.under_way)

    @property
    def num_requests(self) -> int:
        scheduler = self.scheduler
        return len(scheduler.running) + len(scheduler.swapped) + len(scheduler.waiting)

    # Schedule

    def schedule(self, now: float) -> StepBatch | None:
        """Returns the next step to send, or None when there is nothing to do or enough is under way."""
        if len(self.under_way) >= PIPELINE_DEPTH:
            return None
        batch = self.scheduler.schedule(self._last_step + 1, now)
        if batch.empty:
            return None
        self._last_step = batch.step
        self.last_load = self.scheduler.load
        self.under_way.append(batch.step)
        self._count(batch)
        return batch

    def _count(self, batch: StepBatch) -> None:
        counters = self._counters
        counters.steps += 1
        counters.copied_blocks += len(batch.block_copies)
        counters.swapped_out_blocks += len(batch.swaps_out)
        counters.swapped_in_blocks += len(batch.swaps_in)
        counters.peak_referenced_blocks = max(counters.peak_referenced_blocks, self.memory.pool.num_referenced)
        if batch.step % WASTE_INTERVAL == 1:
            counters.note_memory(self.memory, self.scheduler.live_sequences())

    # Apply

    def apply(self, result: StepResult, now: float) -> Outputs:
        """Takes a step's tokens in.

        Raises:
            OutOfOrder: it is not the result that is due; nothing has changed.
        """
        if not self.under_way or self.under_way[0] != result.step:
            due = self.under_way[0] if self.under_way else "none"
            raise OutOfOrder(f"result of step {result.step}, where the one due is {due}")
        self.under_way.popleft()
        self.memory.fence.step_finished(result.step)
        if result.speeds is not None:
            self.memory.costs.speeds = result.speeds
        outputs = Outputs()
        for request, num_tokens in self.scheduler.progress_of(result.step):
            if request.unfinished():
                outputs.progress.append(Progress(request.spec.handle, num_tokens, len(request.spec.prompt_token_ids)))
        for sequence_id, reason in result.failures.items():
            self._give_up(sequence_id, reason, outputs, now)
        if result.scores:
            self._take_scores(result)
        self._take_tokens(result, outputs, now)
        if result.candidates:
            self._take_candidates(result, outputs, now)
        self._emit(Event(EventKind.STEP_DONE, now, None, result.step, executor=self.name))
        return outputs

    def _give_up(self, sequence_id: int, reason: str, outputs: Outputs, now: float) -> None:
        sequence = self.scheduler.sequences.get(sequence_id)
        if sequence is not None:
            self.end(sequence.request, outputs, now, error=InvalidRequest("sampling.guide", reason))

    def _take_scores(self, result: StepResult) -> None:
        for sequence_id, score in zip(result.sequence_ids, result.scores, strict=True):
            sequence = self.scheduler.sequences.get(sequence_id)
            if sequence is not None:
                sequence.score += score

    def _take_tokens(self, result: StepResult, outputs: Outputs, now: float) -> None:
        """Appends each sequence's token. This loop is most of what a step costs: it does nothing that can wait."""
        find, emit = self.scheduler.sequences.get, outputs.tokens.append
        logprobs = dict(zip(result.sequence_ids, result.logprobs, strict=False))
        num_late = 0
        for sequence_id, token_id in zip(result.sequence_ids, result.token_ids, strict=True):
            sequence = find(sequence_id)
            if sequence is None:  # it ended while this token was under way
                num_late += 1
                continue
            token_ids = sequence.token_ids
            token_ids.append(token_id)
            length = len(token_ids)
            if length >= sequence.next_check or token_id in sequence.stop_token_ids or logprobs:
                self._take_special(sequence, token_id, logprobs.get(sequence_id), outputs, now)
            else:
                emit(sequence)
        self._counters.generated_tokens += len(result.token_ids) - num_late

    def _take_special(self, sequence: Sequence, token_id: int, logprobs: object, outputs: Outputs, now: float) -> None:
        """A token that is the first here, may fill a block, may end a sequence, or is not sent at once."""
        request = sequence.request
        position = len(sequence.token_ids) - sequence.prompt_length - 1
        request.num_losses = 0
        if not sequence.next_check:
            request.note_first_token(now)
        if position == 0 and sequence.sample_index == 0:
            self._emit(Event(EventKind.FIRST_TOKEN, now, sequence.handle))
        if request.spec.pin is not None:
            self._end_pin(sequence, outputs, now)
            return
        if sequence.table:
            self.memory.register_full_blocks(sequence)
            if sequence.duplicates:
                self.scheduler.note_duplicates(sequence)
        reason = reason_to_finish(sequence)
        if request.streamed:
            sequence.next_check = self.memory.next_check(sequence)
            if reason is None and logprobs is None:
                outputs.tokens.append(sequence)
            else:
                kept = [] if logprobs is None else [logprobs]
                outputs.updates.append(
                    SequenceUpdate(sequence.handle, sequence.sample_index, position, [token_id], kept, reason)
                )
        if reason is not None:
            self.finish(sequence, reason, outputs, now)

    def _end_pin(self, sequence: Sequence, outputs: Outputs, now: float) -> None:
        """The prompt is computed; the token that came with it is nobody's."""
        sequence.token_ids.pop()
        if sequence.table:
            error = self._on_prefix_computed(sequence.request, self, now)
            self.end(sequence.request, outputs, now, error=error)
        else:  # preempted meanwhile: its last token is computed again
            sequence.num_computed = min(sequence.num_computed, len(sequence.token_ids) - 1)

    def _take_candidates(self, result: StepResult, outputs: Outputs, now: float) -> None:
        requests: dict[Request, None] = {}
        for sequence_id, candidates in result.candidates.items():
            sequence = self.scheduler.sequences.get(sequence_id)
            if sequence is not None and sequence.resident:  # otherwise it was preempted, and they come once more
                sequence.candidates = candidates
                requests[sequence.request] = None
        for request in requests:
            if all(beam.candidates is not None for beam in request.sequences):
                self._advance_beams(request, outputs, now)

    def _advance_beams(self, request: Request, outputs: Outputs, now: float) -> None:
        """One step of beam search: the beams that go on are tables; no key or value moves (section 4.4)."""
        search, beams = request.beams, request.sequences
        assert search is not None
        if not beams[0].num_output:
            self._emit(Event(EventKind.FIRST_TOKEN, now, request.spec.handle))
        request.num_losses = 0
        request.note_first_token(now)
        candidates = [beam.candidates for beam in beams if beam.candidates is not None]
        outputs_so_far = [beam.token_ids[beam.prompt_length :] for beam in beams]
        continuations = search.advance(outputs_so_far, candidates)
        self._counters.generated_tokens += len(beams)
        if search.done:
            send_best_beams(request, outputs)
            self.end(request, outputs, now)
            return
        kept: dict[int, Sequence] = {}
        request.sequences = []
        for continuation in continuations:
            parent = beams[continuation.parent]
            if continuation.parent in kept:
                # The parent has its own next token already.
                beam = self._factory.add(request, 0, parent.token_ids[:-1])
                self.memory.fork(parent, beam)
                beam.last_step = parent.last_step
                request.branches.append((parent, beam))
            else:
                beam = kept[continuation.parent] = parent
                request.sequences.append(beam)
            beam.token_ids.append(continuation.token_id)
            beam.candidates = None
            request.choices.append((beam, continuation.token_id))
        for index, beam in enumerate(beams):
            if index not in kept:
                self.scheduler.drop(beam)
        request.forked = True
        for beam in request.sequences:
            self.memory.register_full_blocks(beam)
            self.scheduler.note_duplicates(beam)
        self.scheduler.expand(request)

    # Ends

    def finish(self, sequence: Sequence, reason: FinishReason | None, outputs: Outputs, now: float) -> None:
        """Ends one sequence, and its request with the last one."""
        sequence.finish_reason = reason
        self.scheduler.finish(sequence, now)
        request = sequence.request
        if request.forked and not request.unfinished():
            if request.ranked:
                send_best_samples(request, outputs)
            self.end(request, outputs, now)

    def end(
        self, request: Request, outputs: Outputs, now: float, error: RequestError | None = None, detail: str = ""
    ) -> None:
        """Leaves nothing of a request behind, and says how it ended."""
        self.scheduler.remove(request)
        end_request(request, outputs, now, self._counters, self._emit, error, detail)

    # Looking in

    def check_integrity(self) -> None:
        """Asserts every invariant of the queue, the tables, the pools and the prefix caches. Linear in blocks."""
        self.scheduler.check_integrity()
        holding = [*self.scheduler.live_sequences(), *self.scheduler.swapped_sequences()]
        self.memory.check_integrity(holding)
