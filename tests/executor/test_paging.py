"""Paged execution gives what the whole sequence in one forward pass gives, wherever its blocks lie."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from executor.attention import BACKENDS
from executor.errors import SettingsError
from executor.step import SamplingParams
from tests.executor.conftest import BOTH_DECODERS

pytestmark = BOTH_DECODERS

_GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def greedy(llama):
    """transformers' greedy continuation of one prompt."""

    def generate(tokens, count):
        output = llama[1].generate(
            torch.tensor([tokens]), max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=None
        )
        return output[0, len(tokens) :].tolist()

    return generate


@pytest.mark.parametrize("block_size", [1, 16, 32])
@pytest.mark.parametrize("chunk", [1000, 7])
def test_prompts_batched_and_scattered(llama, load, drive, prompt, greedy, block_size, chunk):
    """The arena starts full of NaN, in every type: nothing that was not written may be read."""
    prompts = [prompt(length, seed=length) for length in (1, 5, 16, 17, 33, 60)]
    executor = load(llama[0], block_size=block_size)
    executor._runner.arena.data.view(torch.uint8).fill_(0xFF)
    assert drive(executor, seed=block_size).generate(prompts, 20, chunk=chunk) == [greedy(p, 20) for p in prompts]


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_torch_computes_the_same_with_every_attention_backend(llama, load, drive, prompt, greedy, backend):
    try:
        executor = load(llama[0], decoder="torch", attention_backend=backend, dtype="float32")
    except SettingsError as reason:
        pytest.skip(str(reason))
    prompts = [prompt(length, seed=length) for length in (3, 16, 40)]
    assert drive(executor).generate(prompts, 20, chunk=7) == [greedy(p, 20) for p in prompts]


@pytest.mark.parametrize("family", ["opt", "gpt2"])
def test_learned_positions_continue_across_chunks_and_steps(save_model, load, drive, prompt, family):
    import transformers

    config = {
        "opt": transformers.OPTConfig(
            vocab_size=96, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, eos_token_id=None
        ),
        "gpt2": transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, eos_token_id=None),
    }[family]
    folder, model = save_model(config)
    prompts = [prompt(21, seed=1), prompt(6, seed=2)]
    expected = [
        model.generate(torch.tensor([tokens]), max_new_tokens=15, do_sample=False)[0, len(tokens) :].tolist()
        for tokens in prompts
    ]
    assert drive(load(folder)).generate(prompts, 15, chunk=8) == expected


def test_a_sequence_resumes_on_blocks_that_are_already_computed(llama, load, drive, prompt, greedy):
    tokens = prompt(40, seed=1)
    driver = drive(load(llama[0]))
    driver.generate([tokens], 5)
    table = driver.tables[0]
    resumed = driver.new(9, driver.tokens[0], prompt_length=40, num_computed=32, table=table[:2])
    driver.run({9: 13}, [resumed], forget=[0])
    driver.run({9: 1})
    assert driver.tokens[9][40:] == greedy(tokens, 7)


def test_rows_share_blocks_that_one_of_them_fills_in_the_same_step(llama, load, drive, prompt, greedy):
    """The second prompt takes the first 32 tokens from blocks that the first one computes in that very step."""
    shared = prompt(32, seed=1)
    prompts = [shared + prompt(9, seed=2), shared + prompt(5, seed=3)]
    driver = drive(load(llama[0]))
    first = driver.new(0, prompts[0])
    edits = driver.edits(0, 41)
    second = driver.new(1, prompts[1], num_computed=32, table=driver.tables[0][:2])
    edits += driver.edits(1, 5)
    driver.step(
        driver.batch(new_sequences=[first, second], row_sequence_ids=[0, 1], row_num_tokens=[41, 5], table_edits=edits)
    )
    for _ in range(5):
        driver.run({1: 1, 0: 1})
    assert [driver.tokens[i][len(prompts[i]) :] for i in (0, 1)] == [greedy(tokens, 6) for tokens in prompts]


def test_copy_on_write_replaces_a_shared_block(llama, load, drive, prompt, greedy):
    """A second sequence shares three blocks, the last one half full; it writes to a copy, the first is undisturbed."""
    tokens = prompt(40, seed=1)
    other = [*tokens[:38], 5, 6, 7]
    driver = drive(load(llama[0]))
    driver.run({0: 40}, [driver.new(0, tokens)])
    copy = driver.free.pop()
    second = driver.new(1, other, num_computed=38, table=driver.tables[0])
    source = driver.tables[0][2]
    driver.tables[1][2] = copy
    driver.step(
        driver.batch(
            new_sequences=[second],
            row_sequence_ids=[0, 1],
            row_num_tokens=[1, 3],
            table_edits=[(1, 2, copy)],
            block_copies=[(source, copy)],
        )
    )
    for _ in range(4):
        driver.run({0: 1, 1: 1})
    assert driver.tokens[0][40:] == greedy(tokens, 6)
    assert driver.tokens[1][41:] == greedy(other, 5)


def test_forked_sequences_continue_on_their_own(llama, load, drive, prompt):
    """Parent and children share the prompt's blocks and copy the last one; each is what it would be alone."""
    tokens = prompt(21, seed=1)
    sampling = SamplingParams(temperature=1.5, seed=11)

    driver = drive(load(llama[0]))
    for child in (1, 2):
        driver.new(child, tokens)
    result = driver.run({0: 21}, [driver.new(0, tokens, sampling)], forks={0: [1, 2]})
    assert result.sequence_ids == [0, 1, 2]
    for child in (1, 2):
        driver.computed[child], driver.tables[child] = 21, list(driver.tables[0])
    copies = [driver.free.pop(), driver.free.pop()]
    source = driver.tables[0][1]
    driver.tables[1][1], driver.tables[2][1] = copies
    driver.step(
        driver.batch(
            row_sequence_ids=[0, 1, 2],
            row_num_tokens=[1, 1, 1],
            table_edits=[(1, 1, copies[0]), (2, 1, copies[1])],
            block_copies=[(source, copies[0]), (source, copies[1])],
        )
    )
    for _ in range(20):
        driver.run({2: 1, 0: 1, 1: 1})

    outputs = [driver.tokens[i][21:] for i in range(3)]
    assert len({tuple(output) for output in outputs}) == 3
    for index, output in enumerate(outputs):
        alone = drive(load(llama[0]))
        new = replace(alone.new(0, tokens, sampling), sample_index=index)
        alone.run({0: 21}, [new])
        while len(alone.tokens[0]) < 21 + len(output):
            alone.run({0: 1})
        assert alone.tokens[0][21:] == output


def test_a_greedy_fork_repeats_its_parent(llama, load, drive, prompt, greedy):
    tokens = prompt(10, seed=1)
    driver = drive(load(llama[0]))
    driver.new(1, tokens)
    result = driver.run({0: 10}, [driver.new(0, tokens)], forks={0: [1]})
    assert result.token_ids == greedy(tokens, 1) * 2


def test_seeded_sampling_does_not_depend_on_the_batch_or_on_preemption(llama, load, drive, prompt):
    sampling = SamplingParams(temperature=1.0, top_p=0.95, seed=3)
    neighbours = [
        SamplingParams(temperature=0.7, top_k=5, seed=9),
        _GREEDY,
        SamplingParams(temperature=2.0, min_p=0.01, seed=3),
    ]
    tokens = prompt(30, seed=1)
    prompts = [prompt(length, seed=length) for length in (4, 50, 13)]
    alone = drive(load(llama[0])).generate([tokens], 24, [sampling])[0]

    driver = drive(load(llama[0], block_size=4))
    assert driver.generate([tokens, *prompts], 24, [sampling, *neighbours], chunk=11)[0] == alone

    so_far = tokens + alone[:9]
    driver.run({50: 39}, [driver.new(50, so_far, sampling, prompt_length=30)], forget=[0])
    while len(driver.tokens[50]) < 54:
        driver.run({50: 1, 2: 1})
    assert driver.tokens[50][30:] == alone
