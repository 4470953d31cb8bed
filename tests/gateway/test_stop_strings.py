"""A stop string is found wherever the text is cut, and nothing is kept back without need."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stop_strings import StopMatcher, StopPattern

letters = st.text(alphabet="ab", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab", min_size=1, max_size=6), max_size=4)


def matcher(*stops: str) -> StopMatcher:
    return StopMatcher([StopPattern.compile(stop) for stop in stops])


def cut(text: str, stops: list[str]) -> str | None:
    """The text before the stop string that is completed first, the longest of several; None without one."""
    found = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    if not found:
        return None
    end, negative_length = min(found)
    return text[: end + negative_length]


@given(pieces=st.lists(letters, max_size=12), stops=stop_lists)
def test_pieces_give_what_the_whole_gives(pieces: list[str], stops: list[str]) -> None:
    search = matcher(*stops)
    out = "".join(search.add(piece) for piece in pieces)
    expected = cut("".join(pieces), stops)
    assert search.stopped == (expected is not None)
    assert out + search.finish() == ("".join(pieces) if expected is None else expected)


@given(text=letters, stops=stop_lists)
def test_only_the_beginning_of_a_stop_string_is_kept_back(text: str, stops: list[str]) -> None:
    search = matcher(*stops)
    out = ""
    for end, character in enumerate(text, 1):
        out += search.add(character)
        if search.stopped:
            return
        held = max((n for stop in stops for n in range(len(stop)) if text[:end].endswith(stop[:n])), default=0)
        assert out == text[: end - held]


@given(st.text(max_size=30), st.integers(0, 30), st.integers(1, 8), st.integers(1, 5))
def test_any_characters(text: str, start: int, length: int, size: int) -> None:
    stop = text[start : start + length]
    if not stop:
        return
    search = matcher(stop)
    out = "".join(search.add(text[index : index + size]) for index in range(0, len(text), size))
    assert out == text[: text.find(stop)]


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["\n\n"], ["one\n", "\ntwo"], ["one", ""]),
        (["STOP"], ["a ST", "ART"], ["a ", "START"]),
        (["aab"], ["aa", "aab"], ["", "aa"]),
        (["abcd", "bc"], ["abcd"], ["a"]),
        (["bc", "abc"], ["abc"], [""]),
        ([], ["any", "thing"], ["any", "thing"]),
    ],
)
def test_examples(stops: list[str], pieces: list[str], expected: list[str]) -> None:
    search = matcher(*stops)
    assert [search.add(piece) for piece in pieces] == expected


def test_nothing_comes_after_a_stop_string() -> None:
    search = matcher("b")
    assert search.add("ab") == "a"
    assert (search.add("more"), search.finish()) == ("", "")
