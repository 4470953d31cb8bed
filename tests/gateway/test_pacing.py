"""How often a stream's tokens leave."""

from __future__ import annotations

import pytest

from gateway.pacing import LONGEST_INTERVAL, response_interval


@pytest.mark.parametrize("num_streams", [0, 1, 4])
def test_few_streams_get_each_token_at_once(num_streams: int) -> None:
    assert response_interval(num_streams, responses_per_second=500) == 0


@pytest.mark.parametrize("num_streams", [5, 8, 64, 100])
def test_more_streams_share_the_responses_of_a_second(num_streams: int) -> None:
    assert num_streams / response_interval(num_streams, responses_per_second=500) == pytest.approx(500)


def test_no_token_is_kept_back_for_long() -> None:
    assert response_interval(100_000, responses_per_second=500) == LONGEST_INTERVAL
