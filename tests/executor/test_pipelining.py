"""Steps that are launched before the one before has told its tokens give what steps one after the other give.

On a CPU a step is done when it was launched, so a sampler stands in for a GPU's: the tokens that it draws are in a
tensor that only the runner reads, and the host learns them when it takes the step's result.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace

import pytest
import torch

from executor.sampling.sampler import Drawn
from executor.sampling.samplers import TorchSampler
from executor.step import (
    BatchRefused,
    NewSequence,
    Penalties,
    SamplingParams,
    StepBatch,
    StepResult,
    StoredBlock,
    Tier,
)
from executor.under_way import UnderWay

_VOCAB = 96


class DeferringSampler(TorchSampler):
    """Tells the tokens when it is asked to finish, as one on a GPU does.

    Attributes:
        fails: what telling them raises.
    """

    fails: Exception | None = None

    def sample(self, logits, rows, sequences):
        sampled = super().sample(logits, rows, sequences).finish()

        def finish():
            if self.fails is not None:
                raise self.fails
            return sampled

        return Drawn(torch.tensor(sampled.token_ids), finish)


@pytest.fixture
def deferring(load):
    """Makes an executor that leaves tokens on its device; and its sampler."""

    def make(folder, **settings):
        executor = load(folder, decoder="torch", **settings)
        executor._sampler = DeferringSampler()
        return executor

    return make


@dataclass
class Sequence:
    """What a KV manager keeps of one.

    Attributes:
        tokens: those that are known; `length` may count some that are not.
        resumable: its tokens are known once no step is under way.
        to_copy: shares its blocks with the sequence it was copied from.
    """

    tokens: list[int]
    prompt_length: int
    length: int
    sampling: SamplingParams
    num_candidates: int
    sample_index: int = 0
    computed: int = 0
    table: list[int] = field(default_factory=list)
    resumable: bool = True
    to_copy: bool = False
    candidates: list[int] = field(default_factory=list)


class Script:
    """A KV manager that decides at random, with so many steps under way; the decisions depend on the seed alone."""

    def __init__(self, executor, seed, depth):
        self.executor = executor
        self.rng = random.Random(seed)
        self.depth = depth
        self.under_way: deque[UnderWay] = deque()
        self.results: list[StepResult] = []
        self.epoch, self.steps, self.next_id = 1, 0, 0
        self.sequences: dict[int, Sequence] = {}
        self.free: list[int] = []
        self._clear()

    def _clear(self):
        self.sequences.clear()
        self.free = list(range(self.executor.info.num_blocks))

    def run(self, count):
        for _ in range(count):
            choice = self.rng.random()
            if choice < 0.03:
                self.epoch, self.steps = self.epoch + 1, 0
                self._clear()
            if choice > 0.7:
                self._drain()
            self._launch(knows_all=choice > 0.7)
        self._drain()
        return self.results

    def _drain(self):
        while self.under_way:
            self._take()

    def _take(self):
        result = self.under_way.popleft().result()
        self.results.append(replace(result, speeds=None))
        if result.epoch < self.epoch:
            return
        for sequence_id, token in zip(result.sequence_ids, result.token_ids, strict=True):
            if sequence_id in self.sequences:
                self.sequences[sequence_id].tokens.append(token)
        for each in result.candidates:
            if each.sequence_id in self.sequences:
                self.sequences[each.sequence_id].candidates = each.token_ids

    def _launch(self, knows_all):
        fields = {name: [] for name in ("forget", "branches", "chosen_tokens", "new_sequences", "table_edits")}
        fields |= {"block_copies": [], "row_sequence_ids": [], "row_num_tokens": [], "forks": {}}
        self._forget(fields)
        known = set(self.sequences)
        if knows_all:
            self._preempt(fields)
        self._branch(fields, known & set(self.sequences), knows_all)
        if knows_all:
            self._choose(fields)
        while len(self.sequences) < 3 or (len(self.sequences) < 8 and self.rng.random() < 0.3):
            self._submit(fields)
        self._add_rows(fields, knows_all)
        self.steps += 1
        self.under_way.append(self.executor.launch(StepBatch(self.epoch, self.steps, **fields)))
        while len(self.under_way) >= self.depth:
            self._take()

    def _forget(self, fields):
        if any(sequence.to_copy for sequence in self.sequences.values()):
            return
        for sequence_id in list(self.sequences):
            if self.rng.random() < 0.05 or self.sequences[sequence_id].length > 60:
                self.free += self.sequences.pop(sequence_id).table
                fields["forget"].append(sequence_id)

    def _branch(self, fields, parents, knows_all):
        for parent_id in sorted(parents):
            parent = self.sequences[parent_id]
            if self.rng.random() < 0.06 and not parent.to_copy and len(self.sequences) < 10:
                if parent.num_candidates and not knows_all:
                    continue
                fields["branches"].append((parent_id, self._copy_of(parent, parent.sample_index, knows_all)))

    def _copy_of(self, parent, sample_index, knows_all):
        child = replace(parent, tokens=list(parent.tokens), table=list(parent.table), sample_index=sample_index)
        child.to_copy = True
        # What is still to be told of the parent is not told of the child.
        child.resumable = knows_all and parent.resumable
        self.sequences[self.next_id] = child
        self.next_id += 1
        return self.next_id - 1

    def _choose(self, fields):
        for sequence_id, sequence in self.sequences.items():
            if sequence.num_candidates and sequence.candidates and sequence.computed == sequence.length:
                token = self.rng.choice(sequence.candidates)
                fields["chosen_tokens"].append((sequence_id, token))
                sequence.tokens.append(token)
                sequence.length += 1

    def _preempt(self, fields):
        for sequence_id, sequence in list(self.sequences.items()):
            waits = sequence.computed == sequence.length
            if self.rng.random() < 0.08 and sequence.resumable and not (sequence.to_copy or waits):
                del self.sequences[sequence_id]
                fields["forget"].append(sequence_id)
                self.free += sequence.table
                again = replace(sequence, computed=0, table=[], candidates=[])
                self._add(fields, again)

    def _submit(self, fields):
        rng = self.rng
        penalties = Penalties(presence=0.7, frequency=0.3, repetition=1.3, logit_bias={5: 2.0})
        sampling = SamplingParams(
            temperature=rng.choice([0, 0.7, 1.5]),
            top_k=rng.choice([0, 0, 9]),
            top_p=rng.choice([1.0, 0.9]),
            seed=rng.randrange(1000),
            logprobs=rng.choice([None, None, 2]),
            min_tokens=rng.choice([0, 4]),
            stop_token_ids=(7, 8),
            penalties=rng.choice([None, None, Penalties(logit_bias={5: 2.0}), penalties]),
        )
        prompt = rng.choices(range(_VOCAB), k=rng.randint(1, 40))
        self._add(fields, Sequence(prompt, len(prompt), len(prompt), sampling, rng.choice([0, 0, 0, 3])))

    def _add(self, fields, sequence):
        self.sequences[self.next_id] = sequence
        fields["new_sequences"].append(
            NewSequence(
                self.next_id,
                list(sequence.tokens),
                sequence.prompt_length,
                sequence.computed,
                list(sequence.table),
                sequence.sampling,
                sequence.sample_index,
                sequence.num_candidates,
                ranked=sequence.prompt_length % 3 == 0,
            )
        )
        self.next_id += 1

    def _add_rows(self, fields, knows_all):
        for sequence_id, sequence in list(self.sequences.items()):
            left = sequence.length - sequence.computed
            if not left or (self.rng.random() < 0.15 and not sequence.to_copy):
                continue
            if sequence.to_copy:
                self._copy_blocks(fields, sequence_id, sequence)
            count = min(left, self.rng.choice([4, 16, 100]))
            while len(sequence.table) * self.executor.info.block_size < sequence.computed + count:
                fields["table_edits"].append((sequence_id, len(sequence.table), self.free[-1]))
                sequence.table.append(self.free.pop())
            fields["row_sequence_ids"].append(sequence_id)
            fields["row_num_tokens"].append(count)
            sequence.computed += count
            sequence.candidates = []
            if sequence.computed == sequence.length and not sequence.num_candidates:
                children = self.rng.choice([0] * 9 + [2]) if len(self.sequences) < 10 else 0
                ids = [self._copy_of(sequence, 1 + index, knows_all) for index in range(children)]
                if ids:
                    fields["forks"][sequence_id] = ids
                for each in (sequence_id, *ids):
                    self.sequences[each].length += 1

    def _copy_blocks(self, fields, sequence_id, sequence):
        """Each block of a copy is replaced by one of its own."""
        sequence.to_copy = False
        for index, block in enumerate(sequence.table):
            sequence.table[index] = self.free.pop()
            fields["table_edits"].append((sequence_id, index, sequence.table[index]))
            fields["block_copies"].append((block, sequence.table[index]))


def test_two_steps_under_way_give_what_one_does(llama, load, deferring):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    settings = {"block_size": 4, "kv_memory": "4MiB"}
    expected = Script(load(llama[0], decoder="torch", **settings), seed, depth=1).run(150)
    assert Script(deferring(llama[0], **settings), seed, depth=1).run(150) == expected
    assert Script(deferring(llama[0], **settings), seed, depth=2).run(150) == expected


_GREEDY = SamplingParams(temperature=0)


def _batch(step, count=1, epoch=1, **fields):
    return StepBatch(epoch, step, row_sequence_ids=[0], row_num_tokens=[count], **fields)


@pytest.fixture
def first(prompt):
    """A step that starts a sequence of 20 tokens."""
    return _batch(1, 20, new_sequences=[NewSequence(0, prompt(20, seed=1), 20, 0, [3, 5, 1], _GREEDY)])


@pytest.fixture
def expected(llama, load, first):
    """Its next tokens."""
    executor = load(llama[0])
    return [executor.step(batch).token_ids[0] for batch in (first, *(_batch(step) for step in range(2, 6)))]


@pytest.fixture
def executor(llama, deferring):
    return deferring(llama[0])


def test_a_refused_batch_leaves_the_step_under_way_as_it_is(executor, first, expected):
    under_way = executor.launch(first)
    with pytest.raises(BatchRefused, match="sequence 0: 2 tokens where 1 are left"):
        executor.launch(_batch(2, 2))
    second, third = executor.launch(_batch(2)), executor.launch(_batch(3))
    assert [each.result().token_ids[0] for each in (third, second, under_way)] == expected[2::-1]
    assert under_way.result() is under_way.result()


def test_only_a_higher_epoch_goes_on_after_a_step_that_fails_late(executor, first, expected):
    executor._sampler.fails = MemoryError("no memory")
    under_way, second = executor.launch(first), executor.launch(_batch(2))
    with pytest.raises(MemoryError):
        under_way.result()
    with pytest.raises(BatchRefused, match="step 1 of epoch 1 failed; a higher epoch must start"):
        second.result()
    with pytest.raises(BatchRefused, match="step 1 of epoch 1 failed; a higher epoch must start"):
        executor.launch(_batch(3))
    executor._sampler.fails = None
    assert executor.step(replace(first, epoch=2)).token_ids == expected[:1]
    assert executor.step(_batch(2, epoch=2)).token_ids == expected[1:2]


def test_a_failure_that_shows_when_the_step_is_finished_for_another_one(executor, first):
    """The third batch makes the executor finish the first step, whose failure is only then known."""
    executor._sampler.fails = MemoryError("no memory")
    executor.launch(first)
    second = executor.launch(_batch(2))
    with pytest.raises(BatchRefused, match="step 1 of epoch 1 failed"):
        executor.launch(_batch(3))
    with pytest.raises(BatchRefused, match="step 1 of epoch 1 failed"):
        second.result()


def test_a_step_that_fails_to_start_takes_none_with_it(executor, first, expected, monkeypatch):
    under_way = executor.launch(first)

    def out_of_memory(*_):
        raise MemoryError("no memory")

    with monkeypatch.context() as broken:
        broken.setattr(executor._runner, "run", out_of_memory)
        with pytest.raises(MemoryError):
            executor.launch(_batch(2))
    assert under_way.result().token_ids == expected[:1]
    with pytest.raises(BatchRefused, match="step 2 of epoch 1 failed"):
        executor.launch(_batch(3))


@pytest.mark.parametrize("fails", [False, True])
def test_a_new_epoch_does_not_care_for_a_step_under_way(executor, first, expected, fails):
    """Its result can still be had, and its failure is nobody's."""
    old = [executor.launch(first), executor.launch(_batch(2))]
    new = executor.launch(replace(first, epoch=2))
    if fails:
        executor._sampler.fails = MemoryError("no memory")
        with pytest.raises(MemoryError):
            old[1].result()
        executor._sampler.fails = None
    else:
        assert [each.result().token_ids[0] for each in old] == expected[:2]
    second = executor.launch(_batch(2, epoch=2))
    assert [new.result().token_ids[0], second.result().token_ids[0]] == expected[:2]


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_step_under_way_stores_is_told_if_it_is_done(executor, first, expected, fails):
    """Whoever takes the next epoch waits for it. What it removes is gone in any case."""
    executor.step(replace(first, stored_blocks=[StoredBlock(Tier.DEVICE, block, b"old") for block in (20, 21)]))
    stored = [StoredBlock(Tier.DEVICE, 21, b"new")]
    under_way = executor.launch(replace(_batch(2), removed_blocks=[(Tier.DEVICE, 21)], stored_blocks=stored))
    executor._sampler.fails = MemoryError("no memory") if fails else None
    assert executor.begin_epoch(2) == ([b"old"] if fails else [b"old", b"new"])
    executor._sampler.fails = None
    if not fails:
        assert under_way.result().token_ids == expected[1:2]
    assert executor.step(replace(first, epoch=2)).token_ids == expected[:1]


def test_a_step_without_rows_comes_after_the_one_before(executor, first, expected):
    under_way, empty = executor.launch(first), executor.launch(StepBatch(1, 2))
    assert empty.result().token_ids == []
    assert under_way.result().token_ids == expected[:1]
    assert executor.step(_batch(3)).token_ids == expected[1:2]
