"""Beam search and best_of through the whole stack, by what transformers and single samples say."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.v1 import common_pb2
from tests.services.e2e.calls import Caller
from tests.services.e2e.stack import Stack
from tests.services.e2e.tiny_model import Reference


@pytest.mark.parametrize(
    ("width", "n", "options"),
    [
        (2, 1, {}),
        (4, 4, {"length_penalty": 0.5}),
        (4, 2, {"length_penalty": 2.0, "early_stopping": True}),
        (8, 3, {"early_stopping": "never"}),
    ],
)
def test_beams(caller: Caller, reference: Reference, width: int, n: int, options: dict[str, Any]) -> None:
    """Ids and scores are those of transformers, best beam first, beside requests that sample."""
    prompts = [reference.encode(f"beams {width} and {end}") for end in ("gathered", "sewn", "bound")]
    others = [{"prompt": f"beside {i}", "temperature": 1, "seed": i, "max_tokens": 40} for i in range(3)]
    beams = [
        {"prompt": prompt, "beam_width": width, "n": n, "max_tokens": 30, "temperature": None, **options}
        for prompt in prompts
    ]
    answers = caller.generate_all([*beams, *others])
    for prompt, answer in zip(prompts, answers, strict=False):
        expected = reference.beams(prompt, 30, width, n, **options)
        assert answer.all_token_ids() == [token_ids for token_ids, _ in expected]
        assert answer.all_scores() == pytest.approx([score for _, score in expected], abs=1e-4)
        for token_ids, sequence in zip(answer.all_token_ids(), answer.sequences.values(), strict=True):
            assert sequence.text == reference.decode(token_ids)
            ended = token_ids[-1] == reference.eos_token_id
            assert sequence.finish_reason == (
                common_pb2.FINISH_REASON_STOP if ended else common_pb2.FINISH_REASON_LENGTH
            )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == sum(map(len, answer.all_token_ids()))


def test_the_best_of_several_samples(caller: Caller) -> None:
    """Those with the highest mean log probability of all that are sampled, best first."""
    sampling: dict[str, Any] = {"prompt": "a sheet", "temperature": 1, "seed": 7, "max_tokens": 30, "logprobs": 0}
    everyone = caller.generate(n=6, **sampling)
    means = {
        index: sum(each.logprob for each in sequence.logprobs) / len(sequence.logprobs)
        for index, sequence in everyone.sequences.items()
    }
    best = sorted(means, key=lambda index: -means[index])
    with_logprobs = caller.generate(n=2, best_of=6, **sampling)
    assert [len(sequence.logprobs) for sequence in with_logprobs.sequences.values()] == [30, 30]
    del sampling["logprobs"]
    for answer in (with_logprobs, caller.generate(n=2, best_of=6, **sampling)):
        assert answer.all_token_ids() == [everyone.sequences[index].token_ids for index in best[:2]]
        assert answer.all_scores() == pytest.approx([means[index] for index in best[:2]], abs=1e-5)


def test_beams_leave_nothing_behind_when_their_caller_leaves(stack: Stack) -> None:
    with stack.executor.held():
        call = stack.caller.start("beams", beam_width=16, n=4, max_tokens=300, temperature=None)
        stack.wait_for_requests(running=1)
    call.cancel()
    stack.wait_until_idle()
