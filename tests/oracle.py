"""An executor whose keys and values are fingerprints of the context, and what it must answer, known without any blocks.

Each slot of its blocks holds a fingerprint of the token that was written there and of every token before it, as real
keys and values depend on all of them. Each row reads its whole context through its block table and must find its own
fingerprints there, so a wrong block, a stale copy, a missed copy-on-write, a lost swap or a hit in the wrong place is
seen in the step where it happens. The next token is a hash of the context. It is pipelined like a real executor, and
refuses what a real one would. Whatever it would tell a new KV manager about its blocks is compared with them, too.
"""

from __future__ import annotations

import hashlib
import math
import random
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvmanager.beam_search import BeamSearch, Hypothesis
from kvmanager.kv_events import Tier
from kvmanager.spec import BeamParams
from kvmanager.step import NewSequence, StepBatch, StepResult, StoredBlock
from tests.block_record import BlockRecord, Key

VOCAB_SIZE = 50

LOGIT_SPREAD = 10.0
"""Logits are even between 0 and this: the most likely token has a probability of about 0.2."""

NEVER_WRITTEN = None


# The model


def next_token(context: list[int], seed: object, sample_index: int) -> int:
    """The sampled token after a context: decided by every token in it, the seed and the sample."""
    return int.from_bytes(_hash(context, (seed, sample_index), 4), "little") % VOCAB_SIZE


def next_logprobs(context: list[int], seed: object) -> list[float]:
    """The log probability of each token after a context: log softmax of hashed logits. Sampling does not follow it."""
    words = array("I", _hash(context, (seed, "logits"), VOCAB_SIZE * 4))
    logits = [word * (LOGIT_SPREAD / 2**32) for word in words]
    log_total = math.log(sum(map(math.exp, logits)))
    return [logit - log_total for logit in logits]


def most_likely(logprobs: list[float], count: int) -> tuple[list[int], list[float]]:
    """The `count` most likely tokens, most likely first and at equal probability lower ids first."""
    token_ids = sorted(range(len(logprobs)), key=logprobs.__getitem__, reverse=True)[:count]
    return token_ids, [logprobs[token_id] for token_id in token_ids]


def _hash(context: list[int], key: object, size: int) -> bytes:
    return hashlib.shake_128(array("i", context).tobytes() + repr(key).encode()).digest(size)


# What requests must produce


@dataclass(frozen=True)
class RankedOutput:
    """One of the sequences that `best_of` returns. `score`: mean log probability of its tokens."""

    token_ids: list[int]
    score: float


def expected_output(
    prompt: list[int], seed: object, sample_index: int, max_tokens: int, stop: frozenset[int], min_tokens: int = 0
) -> list[int]:
    """What a sequence must produce."""
    output: list[int] = []
    while len(output) < max_tokens:
        token = next_token(prompt + output, seed, sample_index)
        output.append(token)
        if token in stop and len(output) > min_tokens:
            break
    return output


def expected_best_of(
    prompt: list[int],
    seed: object,
    n: int,
    best_of: int,
    max_tokens: int,
    stop: frozenset[int],
    min_tokens: int = 0,
) -> list[RankedOutput]:
    """The n sequences out of `best_of` with the highest mean log probability, best first, ties by sample index."""
    ranked = []
    for sample_index in range(best_of):
        output = expected_output(prompt, seed, sample_index, max_tokens, stop, min_tokens)
        scores = [next_logprobs(prompt + output[:i], seed)[token] for i, token in enumerate(output)]
        ranked.append(RankedOutput(output, sum(scores) / len(scores)))
    return sorted(ranked, key=lambda sequence: sequence.score, reverse=True)[:n]


def expected_beams(
    prompt: list[int], seed: object, params: BeamParams, max_tokens: int, stop: frozenset[int], n: int
) -> list[Hypothesis]:
    """The n best hypotheses of a beam search, run without any blocks."""
    search = BeamSearch(params, max_tokens, stop)
    outputs: list[list[int]] = [[]]
    while outputs:
        candidates = [most_likely(next_logprobs(prompt + each, seed), search.num_candidates) for each in outputs]
        outputs = [[*outputs[step.parent], step.token_id] for step in search.advance(outputs, candidates)]
    return search.best(n)


# The executor


@dataclass(slots=True)
class OracleSequence:
    """What the executor knows of a sequence. `fingerprints`: what each token's slot must hold, aligned with them."""

    sequence_id: int
    token_ids: list[int]
    fingerprints: list[int]
    table: list[int]
    num_computed: int
    seed: object
    sample_index: int
    num_candidates: int
    ranked: bool

    def append(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        before = self.fingerprints[-1] if self.fingerprints else 0
        self.fingerprints.append(hash((before, token_id)))

    def copy(self, sequence_id: int, sample_index: int) -> OracleSequence:
        return replace(
            self,
            sequence_id=sequence_id,
            sample_index=sample_index,
            token_ids=list(self.token_ids),
            fingerprints=list(self.fingerprints),
            table=list(self.table),
        )


class Oracle:
    """Takes step batches in order; `run` executes the oldest one that is under way.

    Args:
        rng: decides in which order the rows of a step write; it must not matter.
        split: so many of the steps have one row after the other write and read, as on an executor that is short of
            memory, instead of all write before any reads. That must not matter either.
        own_names: as of `BlockRecord`.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        rng: random.Random,
        num_host_blocks: int = 0,
        split: float = 0.25,
        own_names: bool = False,
    ) -> None:
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.block_size = block_size
        self.rng = rng
        self.split = split
        self.own_names = own_names
        self.lose()

    # Failures

    def lose(self) -> None:
        """Drops everything, as a new process after a crash: memory, sequences, and the steps under way."""
        self.blocks = self._fresh_blocks(self.num_blocks)
        self.host_blocks = self._fresh_blocks(self.num_host_blocks)
        self.sequences: dict[int, OracleSequence] = {}
        self.last_step = 0
        self.pending: deque[StepBatch] = deque()
        self.record = BlockRecord(self._slots, self.own_names)
        self._num_launched = 0
        self._written: set[Key] = set()
        self._runs_to_refuse = 0

    def _fresh_blocks(self, count: int) -> list[list[int | None]]:
        return [[NEVER_WRITTEN] * self.block_size for _ in range(count)]

    def describe_blocks(self) -> list[StoredBlock]:
        """Another KV manager takes over: what has begun is finished, and nothing is left but the blocks."""
        self._runs_to_refuse = 0
        while self._num_launched:
            self.run()
        self.pending.clear()
        self.sequences.clear()
        self.last_step = 0
        return list(self.record.blocks.values())

    def _slots(self, key: Key) -> list[int | None]:
        tier, block_id = key
        return (self.blocks if tier is Tier.DEVICE else self.host_blocks)[block_id]

    def stall(self, num_runs: int) -> None:
        """Makes the next so many calls of `run` return nothing."""
        self._runs_to_refuse = num_runs

    # Steps

    def send(self, batch: StepBatch) -> None:
        """Begins with a step at once, or when it is its turn."""
        self.pending.append(batch)
        if self.rng.random() < 0.5:
            self._launch(len(self.pending))

    def _launch(self, num_steps: int) -> None:
        """Begins with so many of the steps that are under way."""
        while self._num_launched < num_steps:
            self.record.launch(self.pending[self._num_launched])
            self._num_launched += 1

    def run(self) -> StepResult | None:
        """Executes one step. None while it stalls.

        Raises:
            AssertionError: a real executor would refuse the step, or would compute something wrong.
        """
        if self._runs_to_refuse:
            self._runs_to_refuse -= 1
            return None
        self._launch(1)
        batch = self.pending.popleft()
        self._num_launched -= 1
        self._written.clear()
        assert batch.step == self.last_step + 1, "a gap in steps"
        self.last_step = batch.step
        self._update_sequences(batch)
        self._edit_tables(batch)
        self._move_blocks(batch)
        rows = self._rows(batch)
        if self.rng.random() < self.split:
            for row in rows:
                self._write(*row)
                self._read(row[0])
        else:
            for row in self.rng.sample(rows, len(rows)):
                self._write(*row)
        for sequence, _ in rows:
            self._read(sequence)
        self.record.finish(self._written)
        return self._sample(batch, [sequence for sequence, _ in rows])

    # Before the rows

    def _update_sequences(self, batch: StepBatch) -> None:
        for sequence_id in batch.forget:
            assert sequence_id in self.sequences, f"forget: sequence {sequence_id} is not known"
            del self.sequences[sequence_id]
        for parent_id, child_id in batch.branches:
            parent = self._known(parent_id, "branches")
            self._add(parent.copy(child_id, parent.sample_index), "branches")
        for sequence_id, token_id in batch.chosen_tokens:
            sequence = self._known(sequence_id, "chosen_tokens")
            assert sequence.num_candidates, f"a token is chosen for sequence {sequence_id}, which samples by itself"
            assert sequence.num_computed == len(sequence.token_ids), (
                f"a token is chosen for sequence {sequence_id}, which has not reported candidates after its last one"
            )
            _check_tokens([token_id])
            sequence.append(token_id)
        new_ids = [new.sequence_id for new in batch.new_sequences]
        assert len(set(new_ids)) == len(new_ids), "new_sequences: a sequence is new twice"
        for new in batch.new_sequences:
            self.sequences[new.sequence_id] = self._start(new)

    def _start(self, new: NewSequence) -> OracleSequence:
        assert 0 < new.prompt_length <= len(new.token_ids), "new_sequences: the prompt is longer than the sequence"
        assert 0 <= new.num_computed < len(new.token_ids), "new_sequences: nothing is left to compute"
        assert new.num_computed <= len(new.block_table) * self.block_size, "new_sequences: computed beyond its table"
        assert new.sample_index >= 0
        assert new.num_candidates >= 0
        _check_tokens(new.token_ids)
        _check_blocks(new.block_table, self.blocks, "new_sequences")
        sequence = OracleSequence(
            new.sequence_id,
            token_ids=[],
            fingerprints=[],
            table=list(new.block_table),
            num_computed=new.num_computed,
            seed=new.sampling,
            sample_index=new.sample_index,
            num_candidates=new.num_candidates,
            ranked=new.ranked,
        )
        for token_id in new.token_ids:
            sequence.append(token_id)
        return sequence

    def _edit_tables(self, batch: StepBatch) -> None:
        for sequence_id, index, block in batch.table_edits:
            table = self._known(sequence_id, "table_edits").table
            assert 0 <= index <= len(table), f"table_edits: sequence {sequence_id}: {index} leaves a gap in its table"
            _check_blocks([block], self.blocks, "table_edits")
            table[index : index + 1] = [block]

    def _move_blocks(self, batch: StepBatch) -> None:
        _copy(batch.swaps_out, self.blocks, self.host_blocks, "swaps_out")
        _copy(batch.swaps_in, self.host_blocks, self.blocks, "swaps_in")
        sources = {source for source, _ in batch.block_copies}
        assert not any(destination in sources for _, destination in batch.block_copies), (
            "block_copies: a block is read and written, so the result depends on their order"
        )
        _copy(batch.block_copies, self.blocks, self.blocks, "block_copies")
        self._written.update((Tier.HOST, destination) for _, destination in batch.swaps_out)
        self._written.update((Tier.DEVICE, destination) for _, destination in batch.swaps_in + batch.block_copies)

    # Rows

    def _rows(self, batch: StepBatch) -> list[tuple[OracleSequence, int]]:
        row_ids = batch.row_sequence_ids
        assert len(set(row_ids)) == len(row_ids), "a sequence has two rows"
        sequences = [self._known(sequence_id, "rows") for sequence_id in row_ids]
        return list(zip(sequences, batch.row_num_tokens, strict=True))

    def _write(self, sequence: OracleSequence, num_tokens: int) -> None:
        start, end = sequence.num_computed, sequence.num_computed + num_tokens
        assert num_tokens > 0
        assert end <= len(sequence.token_ids), f"sequence {sequence.sequence_id}: a row wants tokens that do not exist"
        assert end <= len(sequence.table) * self.block_size, (
            f"sequence {sequence.sequence_id}: a row of {end} tokens exceeds its block table"
        )
        for position in range(start, end):
            block_id = sequence.table[position // self.block_size]
            self.blocks[block_id][position % self.block_size] = sequence.fingerprints[position]
            self._written.add((Tier.DEVICE, block_id))
        sequence.num_computed = end

    def _read(self, sequence: OracleSequence) -> None:
        """Attends to the whole context."""
        length = sequence.num_computed
        content: list[int | None] = []
        for block in sequence.table[: -(-length // self.block_size)]:
            content += self.blocks[block]
        del content[length:]
        if content == sequence.fingerprints[:length]:
            return
        for position, (found, wanted) in enumerate(zip(content, sequence.fingerprints, strict=False)):
            block = sequence.table[position // self.block_size]
            where = f"sequence {sequence.sequence_id}, position {position}, block {block}"
            assert found is not NEVER_WRITTEN, f"{where}: reads what was never written"
            assert found == wanted, f"{where}: reads another context's keys and values"

    def _sample(self, batch: StepBatch, rows: list[OracleSequence]) -> StepResult:
        result = StepResult(batch.step, [], [])
        scores: list[float] = []
        sampling = [sequence for sequence in rows if sequence.num_computed == len(sequence.token_ids)]
        parents = {sequence.sequence_id for sequence in sampling if not sequence.num_candidates}
        assert parents >= batch.forks.keys(), "forks: a parent does not sample in this step"
        for sequence in sampling:
            if sequence.num_candidates:
                logprobs = next_logprobs(sequence.token_ids, sequence.seed)
                result.candidates[sequence.sequence_id] = most_likely(logprobs, sequence.num_candidates)
                continue
            children = [
                sequence.copy(child_id, sample_index)
                for sample_index, child_id in enumerate(batch.forks.get(sequence.sequence_id, ()), start=1)
            ]
            for child in children:
                self._add(child, "forks")
            for member in (sequence, *children):
                token_id = next_token(member.token_ids, member.seed, member.sample_index)
                scores.append(next_logprobs(member.token_ids, member.seed)[token_id] if member.ranked else 0.0)
                member.append(token_id)
                result.sequence_ids.append(member.sequence_id)
                result.token_ids.append(token_id)
        if any(self.sequences[sequence_id].ranked for sequence_id in result.sequence_ids):
            result.scores.extend(scores)
        return result

    # Sequences

    def _known(self, sequence_id: int, where: str) -> OracleSequence:
        assert sequence_id in self.sequences, f"{where}: sequence {sequence_id} is not known"
        return self.sequences[sequence_id]

    def _add(self, sequence: OracleSequence, where: str) -> None:
        assert sequence.sequence_id not in self.sequences, f"{where}: sequence {sequence.sequence_id} exists already"
        self.sequences[sequence.sequence_id] = sequence


def _check_tokens(token_ids: Iterable[int]) -> None:
    assert all(0 <= token_id < VOCAB_SIZE for token_id in token_ids), "a token is not in the vocabulary"


def _check_blocks(block_ids: Iterable[int], pool: list[list[int | None]], where: str) -> None:
    assert all(0 <= block < len(pool) for block in block_ids), f"{where}: a block is not in the pool"


def _copy(
    pairs: list[tuple[int, int]], sources: list[list[int | None]], destinations: list[list[int | None]], where: str
) -> None:
    """Copies all blocks at once."""
    _check_blocks((source for source, _ in pairs), sources, where)
    _check_blocks((destination for _, destination in pairs), destinations, where)
    assert len({destination for _, destination in pairs}) == len(pairs), f"{where}: two copies into one block"
    for source, destination in pairs:
        destinations[destination] = list(sources[source])
