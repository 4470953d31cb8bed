"""`octavo explain`: a request's timeline, as people and programs read it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from octavo.v1 import monitoring_pb2 as pb
from services.cli.app import run
from services.cli.timeline import Phase, life_of
from tests.services.scripted_monitoring import ScriptedMonitoring, decision, monitored

DECISIONS = [
    decision("queued", 0),
    decision("waited", 0.1, reason="not enough free blocks"),
    decision("waited", 0.5, reason="others were preempted"),
    decision("admitted", 1.0, tokens=128, on="10.0.0.1:1"),
    decision("prefill", 1.0, 1.5, tokens=256, step=7, on="10.0.0.1:1"),
    decision("prefill", 1.5, 2.0, tokens=128, step=8, on="10.0.0.1:1"),
    decision("first", 2.0),
    decision("preempted", 4.0, reason="recompute, for request b"),
    decision("admitted", 5.0, tokens=500, on="10.0.0.2:1"),
    decision("prefill", 5.0, 5.5, tokens=20, step=99, on="10.0.0.2:1"),
    decision("finished", 10.0, tokens=64, reason="max_tokens"),
]


def timeline(*decisions: pb.Decision, state: pb.RequestState = pb.REQUEST_STATE_ENDED) -> pb.Timeline:
    request = pb.RequestView(
        request_id="abc",
        tenant="acme",
        state=state,
        reason="max_tokens",
        prompt_tokens=512,
        cached_tokens=128,
        output_tokens=64,
        max_tokens=100,
        preemptions=1,
        executor="10.0.0.2:1",
    )
    return pb.Timeline(request=request, decisions=decisions)


@pytest.fixture
def servicer() -> ScriptedMonitoring:
    servicer = ScriptedMonitoring()
    servicer.timelines["abc"] = timeline(*DECISIONS)
    return servicer


@pytest.fixture
def address(servicer: ScriptedMonitoring) -> Iterator[str]:
    with monitored(servicer) as address:
        yield address


def test_phases_add_up_to_the_whole_life() -> None:
    life = life_of(timeline(*DECISIONS))
    assert life.end == 10.0
    assert life.seconds == pytest.approx(
        {Phase.QUEUE: 1.0, Phase.PREFILL: 1.5, Phase.DECODE: 6.5, Phase.PREEMPTED: 1.0}
    )
    decodes = [(row.at, row.until) for row in life.rows if row.phase is Phase.DECODE]
    assert decodes == [(2.0, 4.0), (5.5, 10.0)]
    waits = [(row.at, row.until, row.phase) for row in life.rows if row.what.startswith("not admitted")]
    assert waits == [(0.1, 0.5, Phase.QUEUE), (0.5, 1.0, Phase.QUEUE)]


def test_a_request_that_was_swapped_decodes_on_at_once() -> None:
    life = life_of(
        timeline(
            decision("queued", 0),
            decision("admitted", 0.0),
            decision("prefill", 0.0, 1.0, tokens=5),
            decision("first", 1.0),
            decision("preempted", 2.0, reason="swap"),
            decision("admitted", 3.0),
            decision("finished", 4.0),
        )
    )
    assert life.seconds == pytest.approx(
        {Phase.QUEUE: 0.0, Phase.PREFILL: 1.0, Phase.DECODE: 2.0, Phase.PREEMPTED: 1.0}
    )


def test_chunks_that_overlap_count_once() -> None:
    """The next step is under way before the last one's result is here."""
    again = [decision("prefill", 3.0, 3.5, tokens=16), decision("prefill", 3.2, 3.9, tokens=16)]
    life = life_of(
        timeline(
            decision("queued", 0),
            decision("admitted", 0.5),
            decision("prefill", 0.5, 1.5, tokens=16),
            decision("prefill", 0.7, 2.0, tokens=16),
            decision("first", 2.0),
            decision("preempted", 2.5),
            decision("admitted", 3.0),
            *again,
            decision("finished", 5.0),
        )
    )
    assert sum(life.seconds.values()) == pytest.approx(5.0)
    assert life.seconds[Phase.PREFILL] == pytest.approx(1.5 + 0.9)
    assert life.seconds[Phase.PREEMPTED] == pytest.approx(0.5)


def test_a_request_that_still_waits() -> None:
    life = life_of(timeline(decision("queued", 0), decision("waited", 2.0, reason="no room")))
    assert (life.end, life.seconds[Phase.QUEUE]) == (2.0, 2.0)
    assert life_of(timeline()).end == 0


def test_many_chunks_are_folded() -> None:
    chunks = [decision("prefill", number, number + 1, tokens=16) for number in range(20)]
    decisions = [decision("queued", 0), decision("admitted", 0), *chunks, decision("first", 20)]
    words = [row.what for row in life_of(timeline(*decisions)).rows]
    assert words[2:5] == ["prefill of 16 tokens", "18 more chunks", "prefill of 16 tokens"]
    assert sum(row.what.startswith("prefill") for row in life_of(timeline(*decisions), all_chunks=True).rows) == 20


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_waterfall(
    address: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(["explain", "abc", "--address", address]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    words = " ".join(shown.split())
    for each in (
        "request abc of tenant acme ended: max_tokens",
        "512 prompt tokens, 128 of them cached; 64 output tokens of at most 100; 1 preemption",
        "10.00 s in all: ■ queue 1.00 s (10 %), ■ prefill 1.50 s (15 %), ■ decode 6.50 s (65 %)",
        "preempted 1.00 s (10 %)",
    ):
        assert each in words
    if width > 80:
        for each in (
            "not admitted: not enough free blocks",
            "prefill of 256 tokens",
            "recompute, for request b",
            "admitted on 10.0.0.1:1, 128 tokens",
        ):
            assert each in words
    bars = [line.rstrip() for line in shown.splitlines() if line.rstrip().endswith("█")]
    assert len(bars) == 9


def test_json(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "abc", "--address", address, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["request"]["request_id"] == "abc"
    assert [each["kind"] for each in printed["decisions"]][-1] == "DECISION_KIND_FINISHED"


def test_a_request_that_is_not_there(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "xyz", "--address", address]) == 1
    assert capsys.readouterr().err == "octavo: NOT_FOUND: request_id: there is no such request\n"


def test_the_beginning_of_an_id_is_enough(
    address: str, servicer: ScriptedMonitoring, capsys: pytest.CaptureFixture[str]
) -> None:
    servicer.requests = [pb.RequestView(request_id=each) for each in ("abc", "xyz-1", "xyz-2")]
    assert run(["explain", "ab", "--address", address]) == 0
    assert "request abc" in capsys.readouterr().out
    assert run(["explain", "xyz", "--address", address]) == 1
    assert capsys.readouterr().err == "octavo: several requests begin with 'xyz', such as xyz-1, xyz-2\n"


def test_what_comes_after_a_long_queue_is_seen(
    address: str, servicer: ScriptedMonitoring, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    servicer.timelines["late"] = timeline(
        decision("queued", 0),
        decision("admitted", 100.0),
        decision("prefill", 100.0, 100.5, tokens=7),
        decision("first", 100.5),
        decision("finished", 101.0, tokens=3),
    )
    assert run(["explain", "late", "--address", address]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("99.750 s" in line and "101.000 s" in line for line in lines)
    bars = {words: line.count("█") for line in lines for words in ("prefill of", "decode") if words in line}
    assert bars["prefill of"] > 5
    assert bars["decode"] > 5


def test_a_key_is_needed(
    address: str,
    servicer: ScriptedMonitoring,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servicer.key = "secret"
    assert run(["explain", "abc", "--address", address]) == 1
    assert capsys.readouterr().err == "octavo: UNAUTHENTICATED: an API key is needed\n"
    monkeypatch.setenv("OCTAVO_API_KEY", "secret")
    assert run(["explain", "abc", "--address", address]) == 0
