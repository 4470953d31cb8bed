"""A sequence that its executor gives up on ends its request, and nothing but that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvmanager.errors import InvalidRequest
from tests.kvmanager.harness import FIRST, Harness


def _fail(h: Harness, *sequence_ids: int) -> None:
    """The oldest step under way comes back, and says so of these sequences."""
    result = h.oracle.run()
    assert result is not None
    h.take(h.manager.apply(FIRST, replace(result, failures=dict.fromkeys(sequence_ids, "no way on")), h.now))
    h.manager.check_integrity()


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("options", [{}, {"n": 3}, {"n": 2, "best_of": 3}])
def test_its_request_ends_with_the_reason_and_leaves_nothing(steps: int, options: dict[str, int]) -> None:
    h = Harness(num_blocks=64, max_batched_tokens=64)
    h.submit("guided", h.prompt(9), max_tokens=20, **options)
    h.submit("other", h.prompt(7), max_tokens=20)
    for _ in range(steps):
        h.step()
    h.schedule()
    h.schedule()
    failing = h.request("guided").sequences[-1].sequence_id
    known = dict(h.output)
    _fail(h, failing)
    error = h.errors["guided"]
    assert isinstance(error, InvalidRequest)
    assert (error.field, str(error)) == ("sampling.guide", "no way on")
    for key, tokens in h.output.items():
        if key[0] == "guided":  # the token that came with it is no token of its
            assert tokens == known[key]
    # It is said again of the step that was under way.
    _fail(h, failing)
    h.run()
    assert h.output["other", 0] == h.expected("other")
    h.check_nothing_is_left()
