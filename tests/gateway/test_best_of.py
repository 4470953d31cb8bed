"""Of several sequences the likeliest are given out, once all are complete."""

from gateway.best_of import BestOf
from gateway.output import Chunk, FinishReason, TokenLogprobs

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def chunk(position: int, text: str, *logprobs: float, reason: FinishReason | None = None) -> Chunk:
    ids = range(position, position + len(logprobs))
    return Chunk(position, list(ids), text, [TokenLogprobs(each) for each in logprobs], reason)


def test_the_best_mean_wins_whatever_the_length() -> None:
    best_of = BestOf(3, 2, shows_logprobs=False)
    assert best_of.add(0, chunk(0, "long ", -0.5, -0.5)) == []
    assert best_of.add(1, chunk(0, "short", -0.75, reason=STOP)) == []
    assert best_of.add(2, chunk(0, "worst", -2.0, reason=STOP)) == []
    assert best_of.add(0, chunk(2, "one", -0.5, reason=LENGTH)) == [
        (0, Chunk(0, [0, 1, 2], "long one", (), LENGTH, score=-0.5)),
        (1, Chunk(0, [0], "short", (), STOP, score=-0.75)),
    ]


def test_of_equal_ones_the_first_wins_and_log_probabilities_are_shown_where_wanted() -> None:
    best_of = BestOf(2, 1, shows_logprobs=True)
    best_of.add(1, chunk(0, "b", -1.0, reason=STOP))
    ((index, best),) = best_of.add(0, chunk(0, "a", -1.0, reason=STOP))
    assert (index, best.text, best.logprobs) == (0, "a", [TokenLogprobs(-1.0)])


def test_what_ended_here_says_so_when_it_comes_not_when_it_is_given_out() -> None:
    best_of = BestOf(1, 1, shows_logprobs=False)
    ((_, best),) = best_of.add(0, Chunk(0, [1], "a", [TokenLogprobs(-1.0)], STOP, ended_here=True))
    assert not best.ended_here
