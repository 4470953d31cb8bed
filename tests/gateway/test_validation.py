"""The limits of a request's own fields: both sides of each, and the field named."""

import math

import pytest

from gateway.errors import InvalidArgument
from gateway.validation import check_priority, check_request_id, check_response_interval, check_timeout, check_ttl

NAN, INFINITY = math.nan, math.inf


def test_request_ids() -> None:
    for good in ("", "a", "ü" * 128):
        check_request_id(good)
    for bad, message in (("x" * 129, "at most 128 characters, has 129"), ("a\nb", "printable"), ("\x00", "printable")):
        with pytest.raises(InvalidArgument, match=message) as error:
            check_request_id(bad)
        assert error.value.field == "request_id"


def test_time_limits() -> None:
    for good in (None, 1e-9, 315_576_000_000.0):
        check_timeout(good)
    for bad in (0.0, -1.0, NAN, INFINITY):
        with pytest.raises(InvalidArgument, match="more than 0") as error:
            check_timeout(bad)
        assert error.value.field == "timeout"


def test_priorities() -> None:
    for good in (-100, 0, 100):
        check_priority(good)
    for bad in (-101, 101):
        with pytest.raises(InvalidArgument, match=f"from -100 to 100, is {bad}") as error:
            check_priority(bad)
        assert error.value.field == "priority"


def test_times_to_live() -> None:
    for good in (1.0, 2_592_000.0):
        check_ttl(good)
    for bad in (None, 0.999, 2_592_000.1, -1.0, NAN, INFINITY):
        with pytest.raises(InvalidArgument) as error:
            check_ttl(bad)
        assert error.value.field == "ttl"


def test_response_interval() -> None:
    for good in (None, 0, 0.5, 60):
        check_response_interval(good)
    for bad in (-0.001, 60.5):
        with pytest.raises(InvalidArgument, match="must be from 0 to 60 s") as error:
            check_response_interval(bad)
        assert error.value.field == "response_interval"
