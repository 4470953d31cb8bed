"""The executor: applies step batches in order and returns the tokens they sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from executor.batch_check import Limits, check_batch
from executor.errors import StepOutOfMemory
from executor.guides.guides import Guides, follow
from executor.memory.block_contents import BlockContents
from executor.memory.block_mover import make_mover
from executor.memory.free_memory import free_memory
from executor.memory.host_arena import HostArena
from executor.memory.out_of_memory import is_out_of_memory, release_cached
from executor.model_runner import ModelRunner, Row
from executor.sampling.logits_processors import reads_tokens
from executor.sampling.sampler import Drawn, Sampled
from executor.sampling.samplers import Sampler, TorchSampler
from executor.sequences import SequenceState
from executor.speeds import SpeedMeter, is_prefill
from executor.step import BatchRefused, Candidates, Speeds, StepBatch, StepResult
from executor.tensor_parallel import ALONE, Ranks
from executor.timer import Span, Timer
from executor.under_way import UnderWay, mark_in_line
from executor.warm_up import measure_speeds


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What an executor runs and how much memory it has.

    Attributes:
        max_model_len: longest sequence it takes, in tokens; all of one fits into its blocks.
        num_host_blocks: blocks beside those of the device; 0 where there are none.
        bytes_per_block: on all ranks together.
        device: its kind, which is that of all ranks.
        max_batched_tokens, max_sequences: most tokens of a step, and rows in it, that there is memory for.
        incarnation: new for each executor that is made: memory described under another incarnation is gone.
        tensor_parallel_size: ranks that compute together.
    """

    model_name: str
    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: int
    num_host_blocks: int
    bytes_per_block: int
    max_batched_tokens: int
    max_sequences: int
    device: str
    dtype: str
    attention_backend: str
    eos_token_ids: tuple[int, ...]
    incarnation: str
    tensor_parallel_size: int = 1


class Executor:
    """Keeps the sequences it is told of and runs the steps it is given. Decides nothing; not thread-safe.

    Making one takes a moment: it measures its speeds.

    Args:
        clock: seconds, from any start.
        sampler: chooses the tokens; with torch where None.
        ranks: that run the same steps; all but the first take its tokens.
        guides: of sequences that ask for one; None where another rank samples.
    """

    def __init__(
        self,
        runner: ModelRunner,
        host: HostArena,
        info: ExecutorInfo,
        clock: Callable[[], float],
        sampler: Sampler | None = None,
        ranks: Ranks = ALONE,
        guides: Guides | None = None,
    ) -> None:
        self.info = info
        self._guides = guides
        self._runner = runner
        self._ranks = ranks
        self._sampler: Sampler = sampler or TorchSampler()
        self._timer = Timer(runner.device, clock)
        self._mover = make_mover(runner.arena, host, self._timer)
        measured = measure_speeds(
            runner, host, self._mover, min(info.max_model_len, info.max_batched_tokens), self._timer, ranks
        )
        self._speeds = SpeedMeter(measured, self._timer)
        self._limits = Limits(
            num_blocks=info.num_blocks,
            num_host_blocks=info.num_host_blocks,
            block_size=info.block_size,
            vocab_size=info.vocab_size,
            max_positions=info.max_model_len,
        )
        self._epoch = 0
        self._last_step = 0
        self._failed = False
        self._latest: UnderWay | None = None
        self._sequences: dict[int, SequenceState] = {}
        self._contents = BlockContents()

    @property
    def epoch(self) -> int:
        """Highest epoch seen; 0 before the first."""
        return self._epoch

    @property
    def speeds(self) -> Speeds:
        """As measured at start, or as a step has reported since."""
        return self._speeds.reported

    def phase_seconds(self) -> dict[str, float]:
        """Wall time of all steps' computing by what it was spent on; empty where the model doesn't tell."""
        return self._runner.phase_seconds()

    def free_memory(self) -> int:
        """Bytes that are free where the model computes."""
        return free_memory(self._runner.device)

    def step(self, batch: StepBatch) -> StepResult:
        """Applies a batch as `executor.step.StepBatch` documents, and waits for what comes of it: see `launch`."""
        return self.launch(batch).result()

    @torch.inference_mode()
    def launch(self, batch: StepBatch) -> UnderWay:
        """Applies a batch as `executor.step.StepBatch` documents; its work is done, or in a GPU's line.

        A sampled token that is still on the GPU goes from there into the next step. So the next batch may be launched
        before this step's result is taken; then the one before this step is finished first. Where tokens so far decide
        the next ones (penalties, guides), the host waits for the step before; the model's work is in line by then.

        A higher epoch drops every sequence, and what blocks are said to hold, and starts with step 1 (see
        `begin_epoch`). If a step fails inside (out of memory, say), only a higher epoch goes on.

        Raises:
            BatchRefused: nothing of the batch was applied.
            StepOutOfMemory: there was no memory for it.
        """
        if self._latest is not None:
            self._latest.finish_before()
        starts_epoch = self._check_turn(batch)
        check_batch(batch, {} if starts_epoch else self._sequences, self._limits)
        self._ranks.announce(batch)
        if starts_epoch:
            self._start_epoch(batch.epoch)
            self._contents.clear()  # whoever leads has not asked for it, and will not say what of it is overwritten
        self._last_step, self._failed = batch.step, True
        try:
            self._latest = self._run(batch)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = self._what_to_lower(batch, error)
        else:
            self._failed = False
            return self._latest
        # Out here nothing holds what the step had made.
        release_cached(self._runner.device)
        raise StepOutOfMemory(failure)

    def begin_epoch(self, epoch: int) -> list[bytes]:
        """Takes an epoch on before its first step, which is still 1. Waits for steps under way, drops every sequence.

        Returns:
            The record of each block that still holds what was stored there, in the order of storing. They stay valid.

        Raises:
            BatchRefused: the epoch is not above all before.
        """
        if epoch <= self._epoch:
            raise BatchRefused(f"epoch {epoch} is not above {self._epoch}")
        if self._latest is not None:
            self._latest.finish()
        self._start_epoch(epoch)
        return self._contents.records()

    def _start_epoch(self, epoch: int) -> None:
        self._contents.forget_pending()
        self._sequences.clear()
        self._latest = None
        self._epoch, self._last_step, self._failed = epoch, 0, False

    def _what_to_lower(self, batch: StepBatch, error: Exception) -> str:
        blocks = "gpu_memory_utilization" if self._runner.device.type == "cuda" else "kv_memory"
        num_tokens, num_rows = sum(batch.row_num_tokens), len(batch.row_num_tokens)
        return (
            f"no memory to compute step {batch.step}, {num_tokens} tokens in {num_rows} rows: lower max_batched_tokens"
            f" or max_sequences, or {blocks}, which leaves more beside the blocks ({error})"
        )

    def _check_turn(self, batch: StepBatch) -> bool:
        """Whether the batch starts a new epoch."""
        if batch.epoch < self._epoch:
            raise BatchRefused(f"epoch {batch.epoch} is older than {self._epoch}")
        starts_epoch = batch.epoch > self._epoch
        if not starts_epoch and (failed := self._failed_step()) is not None:
            raise BatchRefused(f"step {failed} of epoch {self._epoch} failed; a higher epoch must start")
        expected = 1 if starts_epoch else self._last_step + 1
        if batch.step != expected:
            raise BatchRefused(f"step {batch.step} of epoch {batch.epoch} where step {expected} is due")
        return starts_epoch

    def _failed_step(self) -> int | None:
        """Of this epoch."""
        if self._latest is not None and (failed := self._latest.failed_step) is not None:
            return failed
        return self._last_step if self._failed else None

    def _unfinished(self) -> UnderWay | None:
        """The step before, unless its tokens are on the host."""
        return None if self._latest is None or self._latest.is_taken else self._latest

    def _run(self, batch: StepBatch) -> UnderWay:
        self._contents.launched((batch.epoch, batch.step), batch.removed_blocks, batch.stored_blocks)
        self._update_sequences(batch)
        self._move_blocks(batch)
        rows = [
            Row(self._sequences[sequence_id], count)
            for sequence_id, count in zip(batch.row_sequence_ids, batch.row_num_tokens, strict=True)
        ]
        if not rows:
            return self._under_way(batch, lambda: StepResult(batch.epoch, batch.step, speeds=self._speeds.report()))
        return self._next_tokens(batch, *self._compute(batch, rows))

    def _under_way(self, batch: StepBatch, take: Callable[[], StepResult], *, is_pending: bool = False) -> UnderWay:
        """The step, whose work is done, or in the device's line up to here."""

        def take_and_store() -> StepResult:
            result = take()
            self._contents.done((batch.epoch, batch.step))
            return result

        before = self._unfinished()
        event = mark_in_line(self._runner.device)
        if before is None and event is None and not is_pending:
            return UnderWay.done(take_and_store())
        return UnderWay(batch.epoch, batch.step, take_and_store, event, before)

    def _update_sequences(self, batch: StepBatch) -> None:
        for sequence_id in batch.forget:
            del self._sequences[sequence_id]
        for parent, child in batch.branches:
            self._sequences[child] = self._sequences[parent].branch(child)
        for sequence_id, token in batch.chosen_tokens:
            self._sequences[sequence_id].token_ids.append(token)
        for new in batch.new_sequences:
            sequence = self._sequences[new.sequence_id] = SequenceState.start(new)
            if new.sampling.guide is not None and self._guides is not None:
                sequence.guide = self._guides.start(new.sampling.guide)
        for sequence_id, index, block in batch.table_edits:
            self._sequences[sequence_id].edit_table(index, block)

    def _move_blocks(self, batch: StepBatch) -> None:
        if batch.swaps_out:
            span = self._mover.swap_out(batch.swaps_out)
            self._speeds.add("swap_out_blocks_per_s", len(batch.swaps_out), span)
        if batch.swaps_in:
            span = self._mover.swap_in(batch.swaps_in)
            self._speeds.add("swap_in_blocks_per_s", len(batch.swaps_in), span)
        if batch.block_copies:
            span = self._mover.copy(batch.block_copies)
            self._speeds.add("copy_blocks_per_s", len(batch.block_copies), span)

    def _compute(self, batch: StepBatch, rows: list[Row]) -> tuple[torch.Tensor, list[SequenceState]]:
        """Logits, and the sequences whose next tokens they are for, a row each."""
        start = self._timer.mark()
        logits = self._runner.run(rows)
        if is_prefill(batch.row_num_tokens):
            span = Span(start, self._timer.mark())
            self._speeds.add("prefill_tokens_per_s", sum(batch.row_num_tokens), span)
        ending = [row.sequence for row in rows if row.reaches_last]
        for row in rows:
            row.sequence.num_computed += row.num_tokens
        return logits, ending

    def _next_tokens(self, batch: StepBatch, logits: torch.Tensor, ending: list[SequenceState]) -> UnderWay:
        """Row i of the logits gives the next token, or the candidates for it, of sequence i in `ending`."""
        reporting = [row for row, sequence in enumerate(ending) if sequence.num_candidates]
        rows: Sequence[int] = range(len(ending))
        drawing = ending
        if reporting or batch.forks:
            rows, drawing = self._drawing(batch, ending)
        drawn, failures = self._draw(logits, rows, drawing)
        likely = self._candidates(logits, reporting, [ending[row] for row in reporting])
        sampled = _appended(drawn, drawing)

        def take() -> StepResult:
            token_ids, logprobs, scores = sampled()
            sequence_ids = [sequence.sequence_id for sequence in drawing]
            return StepResult(
                batch.epoch,
                batch.step,
                sequence_ids,
                token_ids,
                logprobs,
                scores,
                likely(),
                self._speeds.report(),
                failures,
            )

        return self._under_way(batch, take, is_pending=drawn.tokens is not None)

    def _draw(
        self, logits: torch.Tensor, rows: Sequence[int], drawing: list[SequenceState]
    ) -> tuple[Drawn, list[tuple[int, str]]]:
        """The next tokens, and the sequences whose guides fail them."""
        if not drawing:
            return Drawn(None, lambda: Sampled([], [], [])), []
        before = self._unfinished()
        if before and any(sequence.pending and _looks_back(sequence) for sequence in drawing):
            before.result()
        failures = follow(drawing)
        return self._sampler.sample(logits, rows, drawing), failures

    def _drawing(self, batch: StepBatch, ending: list[SequenceState]) -> tuple[list[int], list[SequenceState]]:
        """Sequences that sample, children right after their parents, and whose row of the logits they sample from."""
        drawing = [
            (row, member)
            for row, sequence in enumerate(ending)
            if not sequence.num_candidates
            for member in self._family(sequence, batch.forks.get(sequence.sequence_id, ()))
        ]
        return [row for row, _ in drawing], [sequence for _, sequence in drawing]

    def _candidates(
        self, logits: torch.Tensor, rows: list[int], sequences: list[SequenceState]
    ) -> Callable[[], list[Candidates]]:
        if not sequences:
            return list
        likely = self._sampler.candidates(logits, rows, sequences)
        ids = [sequence.sequence_id for sequence in sequences]
        return lambda: [Candidates(each, *lists) for each, lists in zip(ids, likely(), strict=True)]

    def _family(self, parent: SequenceState, child_ids: Sequence[int]) -> list[SequenceState]:
        """A sequence, and its children as copies of it."""
        children = [parent.fork(child_id, sample_index) for sample_index, child_id in enumerate(child_ids, start=1)]
        for child in children:
            self._sequences[child.sequence_id] = child
        return [parent, *children]


def _looks_back(sequence: SequenceState) -> bool:
    """Whether its tokens so far decide what the next one may be."""
    return sequence.guide is not None or reads_tokens(sequence.sampling.penalties)


def _appended(drawn: Drawn, drawing: list[SequenceState]) -> Callable[[], Sampled]:
    """Gives each sequence its token, or a place for it.

    Returns:
        What was sampled, once the device is done with it; then the tokens are in their places.
    """
    if drawn.tokens is None:
        sampled = drawn.finish()
        for sequence, token in zip(drawing, sampled.token_ids, strict=True):
            sequence.token_ids.append(token)
        return lambda: sampled
    places = [sequence.keep_place(drawn.tokens, index) for index, sequence in enumerate(drawing)]

    def arrived() -> Sampled:
        sampled = drawn.finish()
        for place, token in zip(places, sampled.token_ids, strict=True):
            place.arrive(token)
        return sampled

    return arrived
