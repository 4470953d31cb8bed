"""Where memory runs out, a step is computed in parts: the tokens are the same, and nothing is lost."""

from __future__ import annotations

import logging
import random
from array import array

import pytest
import torch

from executor.errors import SettingsError, StepOutOfMemory
from executor.memory.out_of_memory import MemoryWarnings, is_out_of_memory, refused_without_memory
from executor.memory.split_runner import halves
from executor.model_runner import Row
from executor.sequences import SequenceState
from executor.step import BatchRefused, Penalties, SamplingParams
from tests.executor.conftest import BOTH_DECODERS
from tests.scarce_memory import out_of_memory, scarce


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (out_of_memory(), True),
        (MemoryError(), True),
        (StepOutOfMemory("no memory"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried"),
            True,
        ),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("CUDA out of memory"), False),
    ],
)
def test_what_is_want_of_memory(error, expected):
    assert is_out_of_memory(error) is expected


def test_torch_raises_what_is_known_for_a_tensor_that_is_too_large():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.int8)
    assert is_out_of_memory(caught.value)
    with (
        pytest.raises(SettingsError, match=r"^too large \(.*can't allocate memory"),
        refused_without_memory("too large"),
    ):
        torch.empty(1 << 50, dtype=torch.int8)
    with pytest.raises(RuntimeError, match="shape"), refused_without_memory("too large"):
        torch.empty(3).view(2)


def _row(sequence_id: int, num_computed: int, count: int, length: int) -> Row:
    tokens = array("q", range(length))
    sequence = SequenceState(sequence_id, tokens, length, num_computed, array("q"), 0, SamplingParams())
    return Row(sequence, count)


def test_halves_keep_every_token_and_its_place():
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    for _ in range(200):
        counts = [rng.choice((1, 1, rng.randint(1, 20))) for _ in range(rng.randint(1, 6))]
        if sum(counts) == 1:
            continue
        rows = [_row(i, i, count, i + count + rng.randint(0, 2)) for i, count in enumerate(counts)]
        first, second = halves(rows)
        assert first, seed
        assert abs(sum(row.num_tokens for row in first) - sum(row.num_tokens for row in second)) <= 1, seed

        def places(part: list[Row]) -> list[tuple[int, int]]:
            return [(row.sequence.sequence_id, i) for row in part for i in range(row.sequence.num_computed, row.end)]

        assert places(first) + places(second) == places(rows), seed
        ending = [row.sequence.sequence_id for row in [*first, *second] if row.reaches_last]
        assert ending == [row.sequence.sequence_id for row in rows if row.reaches_last], seed
        assert [row.sequence.num_computed for row in rows] == list(range(len(rows))), "the sequences are as before"


@pytest.fixture
def executor(llama, load):
    return load(llama[0], block_size=4)


def _mixed_run(drive, executor, prompt, seed: int) -> list[object]:
    """What steps report: long and short prompts, a prefix of the same step, forks, beams, log probabilities."""
    driver = drive(executor, seed=3, epoch=executor.epoch + 1)
    hot = SamplingParams(temperature=1.5, top_p=0.9, seed=seed, penalties=Penalties(presence=0.5))
    asking = SamplingParams(temperature=0, logprobs=3)
    long = prompt(37, seed=seed)
    first = driver.new(0, long, hot)
    second = driver.new(1, prompt(5, seed=seed + 1), asking)
    beams = driver.new(3, prompt(9, seed=seed + 2), num_candidates=4)
    ranked = driver.new(4, prompt(2, seed=seed + 3), hot, ranked=True)
    counts = {0: 37, 1: 5, 3: 9, 4: 2}
    edits = [edit for sequence_id, count in counts.items() for edit in driver.edits(sequence_id, count)]
    # Reads the first sequence's blocks, which this step fills.
    shared = driver.tables[0][:8]
    follower = driver.new(2, [*long[:32], 7, 8, 9], hot, num_computed=32, table=shared)
    edits += driver.edits(2, 3)
    batch = driver.batch(
        new_sequences=[first, second, beams, ranked, follower],
        row_sequence_ids=[*counts, 2],
        row_num_tokens=[*counts.values(), 3],
        table_edits=edits,
        forks={0: [10, 11]},
    )
    for child in (10, 11):
        driver.tokens[child], driver.computed[child] = list(long), 37
    results = [driver.step(batch)]
    for child in (10, 11):
        # The last block is partly filled: a copy for each child.
        driver.tables[child] = driver.tables[0][:9]
    copies = [(driver.tables[0][9], driver.free.pop()) for _ in (10, 11)]
    for child, (_, block) in zip((10, 11), copies, strict=True):
        driver.tables[child].append(block)
    moved = [(child, 9, driver.tables[child][9]) for child in (10, 11)]
    results.append(
        driver.step(
            driver.batch(
                block_copies=copies,
                table_edits=[*moved, *(edit for each in (0, 1, 2, 4) for edit in driver.edits(each, 1))],
                row_sequence_ids=[0, 10, 11, 1, 2, 4],
                row_num_tokens=[1] * 6,
            )
        )
    )
    chosen = results[0].candidates[0].token_ids[1]
    driver.tokens[3].append(chosen)
    results.append(driver.run({3: 1, 1: 1}, chosen_tokens=[(3, chosen)]))
    return [(each.sequence_ids, each.token_ids, each.logprobs, each.scores, each.candidates) for each in results]


def _rounded(results: list[object]) -> str:
    """Sums are added up in another order where other rows are computed beside them."""

    def simplify(value: object) -> object:
        if isinstance(value, float):
            return float(f"{value:.4g}")
        if isinstance(value, (list, tuple)):
            return [simplify(each) for each in value]
        if hasattr(value, "__slots__"):
            return [simplify(getattr(value, name)) for name in value.__slots__]
        return value

    return repr(simplify(results))


@BOTH_DECODERS
@pytest.mark.parametrize(("max_tokens", "max_sequences"), [(1, 1), (5, 2), (20, 3), (1000, 1)])
def test_tokens_are_the_same_in_parts(executor, drive, prompt, max_tokens, max_sequences):
    expected = _mixed_run(drive, executor, prompt, seed=5)
    with scarce(executor, max_tokens, max_sequences) as runner:
        found = _mixed_run(drive, executor, prompt, seed=5)
    assert max(runner.sizes) <= max_tokens
    assert _rounded(found) == _rounded(expected)


@BOTH_DECODERS
def test_a_long_prompt_alone_is_cut_into_chunks(executor, drive, prompt):
    prompts = [prompt(50, seed=1)]
    expected = drive(executor).generate(prompts, 10)
    with scarce(executor, 8, 1) as runner:
        assert drive(executor, epoch=executor.epoch + 1).generate(prompts, 10) == expected
    assert runner.sizes[:8] == [6, 6, 6, 7, 6, 6, 6, 7]


@BOTH_DECODERS
def test_it_is_said_now_and_then(executor, drive, prompt, caplog):
    now = iter(float(second) for second in range(1000))
    with scarce(executor, 8, 1, clock=lambda: next(now)):
        drive(executor, epoch=executor.epoch + 1).generate([prompt(50, seed=1)], 1)
        drive(executor, epoch=executor.epoch + 1).generate([prompt(50, seed=1)], 1)
    first, second = caplog.records
    assert first.levelname == "WARNING"
    assert first.getMessage() == "for want of memory a step of 50 tokens in 1 rows is computed in halves"
    assert "Tried to allocate" in first.reason
    assert (first.times_since_last_warning, second.times_since_last_warning) == (1, 10)


@BOTH_DECODERS
def test_without_memory_for_a_token_the_step_fails_and_a_higher_epoch_goes_on(executor, drive, prompt):
    prompts = [prompt(20, seed=1), prompt(3, seed=2)]
    expected = drive(executor).generate(prompts, 6)
    with scarce(executor, 0, 1):
        driver = drive(executor, epoch=executor.epoch + 1)
        with pytest.raises(StepOutOfMemory) as caught:
            driver.generate(prompts, 6)
        with pytest.raises(BatchRefused, match="step 1 of epoch 2 failed; a higher epoch must start"):
            executor.step(driver.batch())
    message = str(caught.value)
    assert "step 1, 23 tokens in 2 rows: lower max_batched_tokens or max_sequences, or kv_memory" in message
    assert "Tried to allocate 2.00 GiB" in message
    assert drive(executor, epoch=executor.epoch + 1).generate(prompts, 6) == expected


def test_other_errors_are_not_taken_for_it(executor, drive, prompt, monkeypatch):
    with scarce(executor, 100, 100) as runner:
        monkeypatch.setattr(runner, "_runner", None)
        with pytest.raises(AttributeError):
            drive(executor, epoch=executor.epoch + 1).generate([prompt(20, seed=1)], 6)


def test_warnings_count_what_they_leave_out(caplog):
    now = [0.0]
    warnings = MemoryWarnings(lambda: now[0])
    for second in (0, 1, 2, 9, 10, 11, 30):
        now[0] = second
        with caplog.at_level(logging.WARNING):
            warnings.tell("it is done in halves", MemoryError("none left"))
    assert [record.times_since_last_warning for record in caplog.records] == [1, 4, 2]
