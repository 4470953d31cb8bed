"""How often a stream's tokens leave."""

from __future__ import annotations

import pytest

from gateway.pacing import LONGEST_INTERVAL, SHORTEST_INTERVAL, response_interval


@pytest.mark.parametrize("num_streams", [0, 1, 5])
def test_few_streams_are_as_smooth_as_an_eye_sees(num_streams: int) -> None:
    assert response_interval(num_streams, responses_per_second=250) == SHORTEST_INTERVAL


@pytest.mark.parametrize("num_streams", [6, 16, 50])
def test_more_streams_share_the_responses_of_a_second(num_streams: int) -> None:
    assert num_streams / response_interval(num_streams, responses_per_second=250) == pytest.approx(250)


def test_no_token_is_kept_back_for_long() -> None:
    assert response_interval(100_000, responses_per_second=250) == LONGEST_INTERVAL
