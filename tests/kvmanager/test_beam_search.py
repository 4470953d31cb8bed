"""Beam search finds what `transformers` finds, and keeps its promises where that has none."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from kvmanager.beam_search import BeamSearch, Continuation, Hypothesis
from kvmanager.errors import InvalidRequest
from kvmanager.request import FinishReason
from kvmanager.spec import BeamParams, EarlyStopping

LogProbs = Callable[[list[int]], list[float]]
"""The log probability of each token after a context."""


def most_likely(logprobs: list[float], count: int) -> tuple[list[int], list[float]]:
    token_ids = sorted(range(len(logprobs)), key=lambda token_id: -logprobs[token_id])[:count]
    return token_ids, [logprobs[token_id] for token_id in token_ids]


def run(
    search: BeamSearch, next_logprobs: LogProbs, prompt: list[int], num_candidates: int | None = None
) -> list[dict[tuple[int, ...], float]]:
    """Runs a search to its end. Returns the outputs and scores of the living beams after each step."""
    outputs: list[list[int]] = [[]]
    history = []
    while not search.done:
        rows = [
            most_likely(next_logprobs(prompt + output), num_candidates or search.num_candidates) for output in outputs
        ]
        alive = search.advance(outputs, rows)
        outputs = [[*outputs[beam.parent], beam.token_id] for beam in alive]
        history.append({tuple(output): beam.score for output, beam in zip(outputs, alive, strict=True)})
    return history


# Against transformers


@dataclass(frozen=True)
class Case:
    """A beam search over a random language model, whose logits are a hash of the context."""

    seed: int
    vocab_size: int
    spread: float
    stop_bias: float
    prompt: tuple[int, ...]
    params: BeamParams
    max_output: int
    min_output: int
    stop_token_ids: tuple[int, ...]

    @classmethod
    def random(cls, rng: random.Random) -> Case:
        num_stops = rng.choice([0, 1, 1, 1, 2, 3])
        width = rng.choice([2, 3, 4, 4, 6, 8])
        # transformers wants this many continuations of the one beam that it starts with.
        vocab_size = max(2, 1 + num_stops) * width + rng.randrange(0, 20)
        max_output = rng.choice([1, 2, 5, 9, 14])
        return cls(
            seed=rng.randrange(2**31),
            vocab_size=vocab_size,
            spread=rng.choice([0.5, 1.5, 3.0]),
            stop_bias=rng.choice([-1.0, 0.0, 1.0, 2.0, 4.0]),
            prompt=tuple(rng.randrange(vocab_size) for _ in range(rng.randrange(1, 6))),
            params=BeamParams(
                width,
                rng.choice([-2.0, -1.0, -0.3, 0.0, 0.4, 0.8, 1.0, 1.0, 1.3, 2.0, 4.0]),
                rng.choice(list(EarlyStopping)),
            ),
            max_output=max_output,
            min_output=rng.randrange(max_output) if num_stops and rng.random() < 0.2 else 0,
            stop_token_ids=tuple(rng.sample(range(vocab_size), num_stops)),
        )

    def __hash__(self) -> int:
        return self.seed


@functools.lru_cache(maxsize=20_000)
def hashed_logits(case: Case, context: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hash((case.seed, context)) % 2**63)
    logits = torch.randn(case.vocab_size, generator=generator) * case.spread
    logits[list(case.stop_token_ids)] += case.stop_bias
    return logits


class HashedModelConfig(PreTrainedConfig):
    model_type = "hashed"


class HashedModel(PreTrainedModel, GenerationMixin):
    """A language model for `generate` whose logits are `hashed_logits`."""

    config_class = HashedModelConfig

    def __init__(self, case: Case) -> None:
        super().__init__(HashedModelConfig(vocab_size=case.vocab_size))
        self.case = case
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        logits = torch.stack([hashed_logits(self.case, tuple(context)) for context in input_ids.tolist()])
        return CausalLMOutput(logits=logits[:, None])


def reference(case: Case) -> list[tuple[list[int], float]]:
    """Ids and score of each beam that transformers returns."""
    result = HashedModel(case).generate(
        torch.tensor([case.prompt]),
        attention_mask=torch.ones(1, len(case.prompt), dtype=torch.long),
        num_beams=case.params.width,
        num_return_sequences=case.params.width,
        length_penalty=case.params.length_penalty,
        early_stopping=case.params.early_stopping.value,
        max_new_tokens=case.max_output,
        min_new_tokens=case.min_output or None,
        eos_token_id=list(case.stop_token_ids) or None,
        pad_token_id=0,
        do_sample=False,
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    lengths = (result.beam_indices >= 0).sum(dim=1).tolist()
    outputs = result.sequences[:, len(case.prompt) :].tolist()
    scores = result.sequences_scores.tolist()
    return [(output[:length], score) for output, length, score in zip(outputs, lengths, scores, strict=True)]


def our_beams(case: Case) -> list[Hypothesis]:
    def next_logprobs(context: list[int]) -> list[float]:
        logprobs = torch.log_softmax(hashed_logits(case, tuple(context)), dim=-1)
        if len(context) - len(case.prompt) < case.min_output:
            logprobs[list(case.stop_token_ids)] = -math.inf
        return logprobs.tolist()

    search = BeamSearch(case.params, case.max_output, frozenset(case.stop_token_ids))
    run(search, next_logprobs, list(case.prompt))
    return search.best(case.params.width)


def assert_equal_to_reference(case: Case) -> None:
    ours, theirs = our_beams(case), reference(case)
    assert [beam.token_ids for beam in ours] == [token_ids for token_ids, _ in theirs], case
    assert [beam.score for beam in ours] == pytest.approx([score for _, score in theirs], rel=1e-5, abs=1e-4), case
    for beam in ours:
        stopped = beam.token_ids[-1] in case.stop_token_ids
        assert beam.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)


@pytest.mark.parametrize("early_stopping", EarlyStopping)
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_ids_and_scores_are_those_of_transformers(length_penalty: float, early_stopping: EarlyStopping) -> None:
    rng = random.Random(f"{length_penalty} {early_stopping}")
    for _ in range(12):
        case = Case.random(rng)
        params = replace(case.params, length_penalty=length_penalty, early_stopping=early_stopping)
        assert_equal_to_reference(replace(case, params=params))


def test_the_widest_search_is_that_of_transformers() -> None:
    case = Case.random(random.Random(32))
    params = BeamParams(32, length_penalty=1.2)
    assert_equal_to_reference(replace(case, vocab_size=100, params=params, max_output=8, stop_token_ids=(3, 40)))


# Rules, one by one

STOP = 9


def search_of(
    width: int,
    max_output: int = 10,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = EarlyStopping.HEURISTIC,
) -> BeamSearch:
    return BeamSearch(BeamParams(width, length_penalty, early_stopping), max_output, frozenset({STOP}))


def test_the_best_continuations_of_all_beams_go_on() -> None:
    search = search_of(2)
    assert search.num_candidates == 3
    assert search.advance([[]], [([5, 3, 1], [-1.0, -1.5, -2.0])]) == [
        Continuation(0, 5, -1.0),
        Continuation(0, 3, -1.5),
    ]
    # Both come from the second beam: together -1.5 - 0.1 and -1.5 - 0.4, against -1.0 - 2.0.
    assert search.advance([[5], [3]], [([1, 2, 3], [-2.0, -2.0, -2.0]), ([7, 8, 6], [-0.1, -0.4, -3.0])]) == [
        Continuation(1, 7, pytest.approx(-1.6)),
        Continuation(1, 8, pytest.approx(-1.9)),
    ]
    assert not search.done
    assert search.best(2) == []


def test_of_equal_scores_the_earlier_beam_and_then_the_earlier_candidate_wins() -> None:
    search = search_of(3)
    first = search.advance([[]], [([8, 2, 5, 1], [-1.0, -1.0, -1.0, -1.0])])
    assert [beam.token_id for beam in first] == [8, 2, 5]
    rows = [([7, 1, 4], [-2.0, -3.0, -3.0]), ([6, 3, 4], [-2.0, -2.0, -3.0]), ([0, 1, 4], [-2.0, -2.0, -2.0])]
    assert [(beam.parent, beam.token_id) for beam in search.advance([[8], [2], [5]], rows)] == [(0, 7), (1, 6), (1, 3)]


def test_a_stop_token_finishes_a_beam_and_another_takes_its_place() -> None:
    search = search_of(2)
    alive = search.advance([[]], [([STOP, 1, 2], [-1.0, -1.5, -2.0])])
    assert [beam.token_id for beam in alive] == [1, 2]
    assert search.best(2) == [Hypothesis([STOP], -1.0, FinishReason.STOP)]


def test_a_stop_token_that_ranks_below_the_width_is_dropped() -> None:
    search = search_of(2)
    alive = search.advance([[]], [([1, 2, STOP], [-1.0, -1.5, -1.6])])
    assert [beam.token_id for beam in alive] == [1, 2]
    assert search.best(2) == []


@pytest.mark.parametrize(
    ("length_penalty", "score"), [(0.0, -3.0), (1.0, -1.5), (2.0, -0.75), (0.5, -3.0 / math.sqrt(2)), (-1.0, -6.0)]
)
def test_a_finished_score_is_over_the_length_of_the_output_and_its_stop_token(
    length_penalty: float, score: float
) -> None:
    search = search_of(1, length_penalty=length_penalty)
    search.advance([[]], [([1, 2], [-1.0, -2.0])])
    search.advance([[1]], [([STOP, 2], [-2.0, -2.5])])
    assert search.best(1) == [Hypothesis([1, STOP], pytest.approx(score), FinishReason.STOP)]


def test_at_the_longest_output_the_first_beams_are_finished_whatever_their_last_token() -> None:
    search = search_of(2, max_output=1)
    assert search.advance([[]], [([4, STOP, 1], [-1.0, -1.5, -2.0])]) == []
    assert search.done
    assert search.best(2) == [
        Hypothesis([4], -1.0, FinishReason.LENGTH),
        Hypothesis([STOP], -1.5, FinishReason.STOP),
    ]
    assert search.best(1) == search.best(2)[:1]


def test_early_stopping_decides_when_enough_is_enough() -> None:
    """One beam is finished at -1.0; the living one has -1.2, over 2 tokens it would have -0.6, if nothing was added."""
    done = {}
    for early_stopping in EarlyStopping:
        search = search_of(1, max_output=2, early_stopping=early_stopping)
        search.advance([[]], [([STOP, 1], [-1.0, -1.2])])
        done[early_stopping] = search.done
    assert done == {EarlyStopping.FIRST: True, EarlyStopping.HEURISTIC: True, EarlyStopping.NEVER: False}


def test_by_the_heuristic_a_better_living_beam_goes_on_where_first_stops() -> None:
    rows = [([STOP, 1, 2], [-0.5, -1.0, -1.5])], [([3, 4, 5], [-0.1, -4.0, -5.0]), ([STOP, 4, 5], [-0.1, -4.0, -5.0])]
    done = {}
    for early_stopping in EarlyStopping:
        search = search_of(2, early_stopping=early_stopping)
        search.advance([[]], rows[0])
        search.advance([[1], [2]], rows[1])  # finished: -0.5 and -0.8; alive: -1.1 / 2
        done[early_stopping] = search.done
        assert [beam.score for beam in search.best(2)] == pytest.approx([-0.5, -0.8])
    assert done == {EarlyStopping.FIRST: True, EarlyStopping.HEURISTIC: False, EarlyStopping.NEVER: False}


def test_never_does_not_count_on_a_length_that_costs() -> None:
    """With a negative penalty the living beams are at their best now, and as long as that is enough they go on."""
    search = search_of(2, length_penalty=-1.0, early_stopping=EarlyStopping.NEVER)
    search.advance([[]], [([STOP, 1, 2], [-0.5, -1.0, -1.5])])
    # Finished: -0.5 and -1.6 * 2; alive: -1.1 * 2.
    search.advance([[1], [2]], [([3, 4, 5], [-0.1, -4.0, -5.0]), ([STOP, 4, 5], [-0.1, -4.0, -5.0])])
    assert not search.done
    # Alive: -1.2 * 3.
    assert search.advance([[1, 3], [1, 4]], [([3, 4], [-0.1, -4.0]), ([3, 4], [-0.1, -4.0])]) == []
    assert search.done


def test_a_living_beam_that_could_only_draw_level_is_given_up() -> None:
    search = search_of(1)
    assert search.advance([[]], [([STOP, 1], [-1.0, -1.0])]) == []
    assert search.best(1) == [Hypothesis([STOP], -1.0, FinishReason.STOP)]


def test_a_masked_token_is_never_chosen() -> None:
    search = search_of(3)
    alive = search.advance([[]], [([1, 2, STOP, 3], [-1.0, -2.0, -math.inf, -math.inf])])
    assert [beam.token_id for beam in alive] == [1, 2]
    assert search.advance([[1], [2]], [([3], [math.nan]), ([4], [-math.inf])]) == []
    assert search.done
    assert search.best(3) == []


def test_a_shorter_longest_output_holds_from_the_next_step() -> None:
    search = search_of(2, max_output=10)
    search.advance([[]], [([1, 2, 3], [-1.0, -1.5, -2.0])])
    search.shrink(2, [[1], [2]])
    search.shrink(20, [[1], [2]])
    assert not search.done
    assert search.advance([[1], [2]], [([3, 4, 5], [-1.0, -2.0, -3.0]), ([3, 4, 5], [-1.0, -2.0, -3.0])]) == []
    assert search.best(2) == [
        Hypothesis([1, 3], -1.0, FinishReason.LENGTH),
        Hypothesis([2, 3], -1.25, FinishReason.LENGTH),
    ]


def test_beams_that_are_too_long_already_finish_as_they_are() -> None:
    search = search_of(2, max_output=10)
    search.advance([[]], [([STOP, 1, 2], [-1.2, -1.5, -2.0])])
    search.advance([[1], [2]], [([3, 4, 5], [-0.1, -2.0, -3.0]), ([3, 4, 5], [-0.2, -2.0, -3.0])])
    search.shrink(1, [[1, 3], [2, 3]])
    assert search.done
    assert search.best(2) == [
        Hypothesis([1, 3], pytest.approx(-0.8), FinishReason.LENGTH),
        Hypothesis([2, 3], pytest.approx(-1.1), FinishReason.LENGTH),
    ]


@pytest.mark.parametrize("length_penalty", [math.nan, math.inf, -math.inf, 500.0, -500.0])
def test_a_length_penalty_out_of_range_is_refused(length_penalty: float) -> None:
    with pytest.raises(InvalidRequest, match=r"length_penalty is .* 100 output tokens") as refusal:
        BeamSearch(BeamParams(2, length_penalty), 100, frozenset())
    assert refusal.value.field == "sampling.length_penalty"


# Whatever the model


def random_model(seed: int, vocab_size: int, spread: float = 2.0) -> LogProbs:
    @functools.cache
    def logprobs(context: tuple[int, ...]) -> list[float]:
        rng = random.Random(hash((seed, context)))
        logits = [rng.gauss(0.0, spread) for _ in range(vocab_size)]
        log_total = math.log(sum(map(math.exp, logits)))
        return [logit - log_total for logit in logits]

    return lambda context: logprobs(tuple(context))


SEARCHES = st.builds(
    BeamParams,
    width=st.integers(1, 6),
    length_penalty=st.sampled_from([-1.0, 0.0, 0.7, 1.0, 1.5]),
    early_stopping=st.sampled_from(EarlyStopping),
)


@settings(max_examples=150, deadline=None)
@given(
    params=SEARCHES,
    seed=st.integers(0, 2**32),
    vocab_size=st.integers(1, 8),
    max_output=st.integers(1, 6),
    stop_token_ids=st.frozensets(st.integers(0, 7), max_size=3),
)
def test_a_search_keeps_its_promises(
    params: BeamParams, seed: int, vocab_size: int, max_output: int, stop_token_ids: frozenset[int]
) -> None:
    model = random_model(seed, vocab_size)
    search = BeamSearch(params, max_output, stop_token_ids)
    history = run(search, model, [1])
    best = search.best(params.width)

    def sum_of_logprobs(output: tuple[int, ...]) -> float:
        return math.fsum(model([1, *output[:i]])[token_id] for i, token_id in enumerate(output))

    for length, alive in enumerate(history, start=1):
        assert len(alive) <= params.width
        assert list(alive.values()) == sorted(alive.values(), reverse=True)
        for output, score in alive.items():
            assert len(output) == length < max_output
            assert not stop_token_ids.intersection(output), "a finished beam goes on"
            assert score == pytest.approx(sum_of_logprobs(output))
    assert history[-1] == {}
    assert 1 <= len(best) <= params.width
    assert len({tuple(beam.token_ids) for beam in best}) == len(best)
    assert [beam.score for beam in best] == sorted((beam.score for beam in best), reverse=True)
    for beam in best:
        length = len(beam.token_ids)
        assert not stop_token_ids.intersection(beam.token_ids[:-1]), "a finished beam went on"
        assert beam.score == pytest.approx(sum_of_logprobs(tuple(beam.token_ids)) / length**params.length_penalty)
        stopped = beam.token_ids[-1] in stop_token_ids
        assert beam.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
        assert stopped or length == max_output

    # More candidates than it asks for change nothing.
    again = BeamSearch(params, max_output, stop_token_ids)
    assert run(again, model, [1], num_candidates=vocab_size) == history
    assert again.best(params.width) == best


@pytest.mark.parametrize("early_stopping", EarlyStopping)
@pytest.mark.parametrize(("vocab_size", "stop_token_ids"), [(1, set()), (1, {0}), (2, set()), (2, {1}), (3, {0, 2})])
def test_a_search_wider_than_there_are_outputs_finds_each_of_them_once(
    vocab_size: int, stop_token_ids: set[int], early_stopping: EarlyStopping
) -> None:
    model, max_output = random_model(vocab_size, vocab_size), 4
    expected = {}

    def extend(output: tuple[int, ...], score: float) -> None:
        if output and (output[-1] in stop_token_ids or len(output) == max_output):
            expected[output] = score / len(output)
            return
        for token_id, logprob in enumerate(model([1, *output])):
            extend((*output, token_id), score + logprob)

    extend((), 0.0)
    search = BeamSearch(BeamParams(32, 1.0, early_stopping), max_output, frozenset(stop_token_ids))
    run(search, model, [1])
    found = search.best(32)
    assert {tuple(beam.token_ids): beam.score for beam in found} == pytest.approx(expected)
    assert len(found) == len(expected)


def test_one_beam_is_greedy_search_up_to_the_stop_token() -> None:
    for seed in range(20):
        model = random_model(seed, vocab_size=6)
        output: list[int] = []
        while len(output) < 8 and 0 not in output:
            output += most_likely(model([1, *output]), 1)[0]
        search = BeamSearch(BeamParams(1), 8, frozenset({0}))
        run(search, model, [1])
        assert search.best(1)[0].token_ids == output
