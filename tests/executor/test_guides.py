"""Guided answers: each is what was asked for, and the same however the executor came to it."""

from __future__ import annotations

import json
import random
from array import array
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
import torch
from llguidance import LLMatcher, LLParserLimits

from executor.errors import VocabularyError
from executor.guides import guides
from executor.guides.guides import MAX_COMPILED, Guides
from executor.guides.vocabulary import Vocabulary
from executor.loader import load_executor
from executor.sampling.sampler import Drawn
from executor.sampling.samplers import TorchSampler
from executor.settings import ExecutorSettings
from executor.step import SamplingParams
from tests.executor.conftest import BOTH_DECODERS
from tests.executor.vocabularies import EOS, SPECIAL, random_vocabulary, vocabulary_of

_SIZE = 320


@pytest.fixture(scope="module")
def tokens() -> tuple[Vocabulary, list[bytes]]:
    return random_vocabulary(random.Random(5), _SIZE)


@pytest.fixture(scope="module")
def folder(save_model, llama_config):
    # Some rows more than the tokenizer has tokens, as models have.
    return save_model(llama_config(vocab_size=_SIZE + 7, eos_token_id=EOS, max_position_embeddings=512))[0]


@pytest.fixture
def make(folder, tokens, decoder):
    """Makes an executor; and says how often it read the vocabulary."""

    def make(read_vocabulary=lambda: tokens[0], **settings):
        settings = {"kv_memory": "2MiB", "device": "cpu", "decoder": decoder} | settings
        return load_executor(ExecutorSettings(model=folder, **settings), read_vocabulary=read_vocabulary)

    return make


def _schema(schema) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(schema))


def _regex(regex) -> str:
    return LLMatcher.grammar_from_regex(regex)


_PERSON = _schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 2},
            "kind": {"enum": ["a", "日本", None]},
        },
        "required": ["name", "ages", "kind"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": False},
    }
)
_MANY_STATES = _regex("(a|b)*a(a|b){60}")
_GUIDES = [_PERSON, _regex("(a|b|🐙){2,20}"), _schema({"type": "array", "maxItems": 3, "items": {"type": "boolean"}})]


def _text(tokens, output) -> str:
    """Of an answer that has ended."""
    assert output[-1] == EOS
    assert output.count(EOS) == 1
    return b"".join(tokens[1][token] for token in output[:-1]).decode()


def _is_right(grammar, text) -> bool:
    if grammar == _GUIDES[1]:
        return set(text) <= {"a", "b", "🐙"} and 2 <= len(text) <= 20
    value = json.loads(text)
    if grammar == _GUIDES[2]:
        return len(value) <= 3 and all(isinstance(each, bool) for each in value)
    assert list(value) == ["name", "ages", "kind"]
    assert all(0 <= age <= 99 for age in value["ages"])
    return len(value["name"]) <= 5 and value["kind"] in ("a", "日本", None)


def _ended(output) -> list[int]:
    """Up to its end, as a KV manager takes it."""
    return output[: output.index(EOS) + 1] if EOS in output else output


def _params(rng, **changes) -> SamplingParams:
    temperature, top_k = rng.choice([0.0, 0.7, 1.5]), rng.choice([0, 20])
    params = SamplingParams(temperature=temperature, top_k=top_k, seed=rng.getrandbits(60), stop_token_ids=(EOS,))
    return replace(params, **changes)


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


@BOTH_DECODERS
def test_each_answer_is_what_was_asked_for(make, drive, tokens, prompt, rng):
    sampling = [_params(rng, guide=rng.choice(_GUIDES)) for _ in range(8)]
    prompts = [prompt(rng.randint(1, 30), rng.getrandbits(30)) for _ in sampling]
    outputs = drive(make()).generate(prompts, 90, sampling)
    ended = 0
    for params, output in zip(sampling, outputs, strict=True):
        if EOS in output:
            ended += 1
            assert _is_right(params.guide, _text(tokens, _ended(output)))
            # What is computed past the end is thrown away, and does no harm.
            assert set(output[len(_ended(output)) :]) <= {EOS}
    assert ended >= 4


@BOTH_DECODERS
def test_alone_or_among_others_it_is_the_same_and_others_do_not_notice(make, drive, prompt, rng):
    sampling = [_params(rng, guide=guide) for guide in (*_GUIDES, None, None)]
    prompts = [prompt(10 + index, rng.getrandbits(30)) for index in range(5)]
    executor = make()
    together = drive(executor).generate(prompts, 25, sampling)
    for epoch, (tokens, params, output) in enumerate(zip(prompts, sampling, together, strict=True), start=2):
        assert drive(executor, epoch=epoch).generate([tokens], 25, [params]) == [output]


@BOTH_DECODERS
def test_going_on_from_its_tokens_so_far_changes_nothing(make, drive, prompt, rng):
    """As after preemption, a lost executor or on another gateway."""
    params, start = _params(rng, guide=_PERSON), prompt(12, rng.getrandbits(30))
    executor = make()
    whole = drive(executor).generate([start], 30, [params])[0]
    for epoch, at in enumerate((1, 2, 7, 29), start=2):
        driver = drive(executor, epoch=epoch)
        sequence = driver.new(0, start + whole[:at], params, prompt_length=len(start))
        driver.run({0: len(start) + at}, [sequence])
        while len(driver.tokens[0]) < len(start) + 30:
            driver.run({0: 1})
        assert driver.tokens[0][len(start) :] == whole


@BOTH_DECODERS
def test_samples_of_one_prompt_go_their_own_ways(make, drive, tokens, prompt, rng):
    params, start = _params(rng, guide=_PERSON, temperature=1.2), prompt(12, rng.getrandbits(30))
    driver = drive(make())
    sequence = driver.new(0, start, params)
    for child in (1, 2, 3):  # each copies the table; it writes to blocks of its own from here on
        driver.tokens[child], driver.computed[child], driver.tables[child] = list(start), len(start), []
    block_size = driver.executor.info.block_size
    assert len(start) < block_size
    driver.run({0: len(start)}, [sequence], forks={0: [1, 2, 3]})
    copies = [(driver.tables[0][0], driver.free.pop()) for _ in range(3)]
    for child, (_, block) in enumerate(copies, start=1):
        driver.tables[child] = [block]
    edits = [(child, 0, block) for child, (_, block) in enumerate(copies, start=1)]
    driver.step(
        driver.batch(row_sequence_ids=[0, 1, 2, 3], row_num_tokens=[1] * 4, table_edits=edits, block_copies=copies)
    )
    for _ in range(80):
        driver.run(dict.fromkeys(range(4), 1))
    outputs = [_ended(driver.tokens[index][len(start) :]) for index in range(4)]
    assert len(set(map(tuple, outputs))) > 1
    for output in outputs:
        if EOS in output:
            assert _is_right(_PERSON, _text(tokens, output))


class _DeferringSampler(TorchSampler):
    """Tells the tokens when it is asked to finish, as one on a GPU does."""

    def sample(self, logits, rows, sequences):
        sampled = super().sample(logits, rows, sequences).finish()
        return Drawn(torch.tensor(sampled.token_ids), lambda: sampled)


@BOTH_DECODERS
def test_two_steps_under_way_give_what_one_does(make, drive, prompt, rng, decoder):
    if decoder == "native":
        pytest.skip("it has no tokens that are on a device only")
    sampling = [_params(rng, guide=guide) for guide in (_PERSON, None, _GUIDES[1])]
    prompts = [prompt(10 + index, rng.getrandbits(30)) for index in range(3)]
    executor = make()
    expected = drive(executor).generate(prompts, 20, sampling)
    executor._sampler = _DeferringSampler()
    driver, results = drive(executor, epoch=2), []
    new = [driver.new(index, each, params) for index, (each, params) in enumerate(zip(prompts, sampling, strict=True))]
    counts = {index: len(each) for index, each in enumerate(prompts)}
    under_way = deque()
    for _ in range(20):
        edits = [edit for index, count in counts.items() for edit in driver.edits(index, count)]
        rows = {"row_sequence_ids": list(counts), "row_num_tokens": list(counts.values())}
        under_way.append(executor.launch(driver.batch(new_sequences=new, table_edits=edits, **rows)))
        driver.steps += 1
        for index, count in counts.items():
            driver.computed[index] += count
        counts, new = dict.fromkeys(counts, 1), []
        if len(under_way) == 2:
            results.append(under_way.popleft().result())
    results += [each.result() for each in under_way]
    assert [list(column) for column in zip(*(result.token_ids for result in results), strict=True)] == expected


@BOTH_DECODERS
def test_a_guide_that_gives_up_fails_its_sequence_alone(make, drive, prompt, rng, monkeypatch):
    monkeypatch.setattr(guides, "LIMITS", LLParserLimits(max_lexer_states=12, verbose_errors=False))
    counting = _regex("(a|b){60}")  # whatever comes, each character takes it to another state
    sampling = [_params(rng, guide=counting), _params(rng), _params(rng, guide="{")]
    prompts = [prompt(10 + index, rng.getrandbits(30)) for index in range(3)]
    executor = make()
    driver = drive(executor)
    new = [driver.new(index, each, params) for index, (each, params) in enumerate(zip(prompts, sampling, strict=True))]
    results = [driver.run({index: len(each) for index, each in enumerate(prompts)}, new)]
    results += [driver.run({0: 1, 1: 1, 2: 1}) for _ in range(20)]
    assert [sequence for sequence, _ in results[0].failures] == [2]
    failures = dict(failure for result in results for failure in result.failures)
    assert set(failures) == {0, 2}
    assert "too many states" in failures[0]
    assert "\n" not in failures[0] + failures[2]
    alone = drive(executor, epoch=2).generate([prompts[1]], 21, [sampling[1]])
    assert driver.tokens[1][len(prompts[1]) :] == alone[0]


def test_what_others_have_used_up_of_a_grammar_fails_nobody(tokens, rng, monkeypatch):
    monkeypatch.setattr(guides, "LIMITS", LLParserLimits(max_lexer_states=2000, verbose_errors=False))
    ends = Guides(lambda: tokens[0], _SIZE)
    for _ in range(60):  # all together have more states than that
        guide, output = ends.start(_MANY_STATES), array("q", [7])
        for _ in range(20):
            guide.follow(output, 1)
            assert guide.error is None
            bits = np.unpackbits(guide.allowed.view(np.uint8), bitorder="little")
            output.append(int(rng.choice(np.flatnonzero(bits))))


@BOTH_DECODERS
def test_a_model_that_lacks_what_it_takes(make, drive, prompt):
    def fail():
        raise VocabularyError("there is no tokenizer")

    def run(read):
        driver = drive(make(read))
        result = driver.run({0: 5}, [driver.new(0, prompt(5, 1), SamplingParams(guide=_PERSON))])
        return [*result.failures, *driver.run({0: 1}).failures]

    assert run(fail) == [(0, "the executor can't guide answers: there is no tokenizer")] * 2
    assert run(lambda: vocabulary_of([bytes([byte]) for byte in range(256) if byte not in b"{"]))


@BOTH_DECODERS
def test_unguided_answers_read_no_vocabulary_and_equal_guides_are_compiled_once(make, drive, prompt, rng, tokens):
    reads = []

    def read():
        reads.append(1)
        return tokens[0]

    executor = make(read)
    drive(executor).generate([prompt(5, 1)], 5, [_params(rng)])
    assert not reads
    drive(executor, epoch=2).generate([prompt(5, seed) for seed in range(4)], 5, [_params(rng, guide=_PERSON)] * 4)
    assert len(reads) == 1
    assert len(executor._guides._compiled) == 1


def test_compiled_guides_are_bounded(tokens):
    kept = Guides(lambda: tokens[0], _SIZE)
    for index in range(MAX_COMPILED + 5):
        kept.start(_regex(f"a{index}"))
        kept.start(_regex("a0"))
    assert len(kept._compiled) == MAX_COMPILED
    assert _regex("a0") in kept._compiled


def test_tokens_that_the_model_has_not_are_never_allowed(tokens):
    guide = Guides(lambda: tokens[0], 100).start(_regex("(.|\n)*"))
    guide.follow(array("q"), 0)
    allowed = np.unpackbits(guide.allowed.view(np.uint8), bitorder="little")
    assert allowed.sum() > 10
    assert not allowed[100:].any()
    assert guide.error is None
    assert not allowed[: len(SPECIAL) - 1].any()
