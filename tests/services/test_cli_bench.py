"""`octavo bench`: what it sends and when, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from services.certificates import make_certificates
from services.cli.app import run
from services.cli.bench.lengths import parse_lengths
from services.cli.bench.load import Load, Record, spread
from services.cli.bench.prompts import Piece, text_maker, token_maker
from services.cli.bench.report import warnings
from services.cli.bench.statistics import (
    Distribution,
    Slo,
    Summary,
    inter_token_latencies,
    percentile,
    tokens_over_time,
)
from services.cli.bench.target import Arrived, Model, RequestFailed, Usage
from services.cli.bench.traces import TraceRow, read_trace
from services.cli.bench.workload import Request, poisson_arrivals, synthetic_shapes, trace_arrivals, trace_shapes
from services.config import ConfigError
from tests.services.scripted_openai import MODEL, ScriptedOpenAI, serving
from tests.services.scripted_server import ScriptedGeneration, running

ROOT = Path(__file__).parents[2]

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0000000,110,0
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 1300, "output_length": 500, "hash_ids": [7, 8, 9]}
{"timestamp": 27482, "input_length": 1024, "output_length": 3, "hash_ids": [7, 10]}
"""


@pytest.fixture
def servicer() -> ScriptedGeneration:
    return ScriptedGeneration()


@pytest.fixture
def address(servicer: ScriptedGeneration) -> Iterator[str]:
    with running(servicer) as address:
        yield address


@pytest.fixture
def scripted() -> ScriptedOpenAI:
    return ScriptedOpenAI()


@pytest.fixture
def url(scripted: ScriptedOpenAI) -> Iterator[str]:
    with serving(scripted) as url:
        yield url


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


Bench = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Runs the command; gives its exit code and what is in its JSON."""

    def run_it(*arguments: str) -> tuple[int, dict[str, Any]]:
        file = tmp_path / "result.json"
        exit_code = run(["bench", *arguments, "--json", str(file), "--rows"])
        return exit_code, json.loads(file.read_text())

    return run_it


def prompts_file(folder: Path, *lines: str) -> str:
    file = folder / "prompts"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


# Figures


def test_percentiles_are_those_of_numpy(rng: random.Random) -> None:
    for count in (1, 2, 7, 100):
        values = sorted(rng.expovariate(1) for _ in range(count))
        for percent in (0, 50, 90, 95, 99, 100):
            assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_the_figures_of_known_requests() -> None:
    # Due at 1, sent late, 1 + 2 + 3 tokens at 2, 4 and 5: the late sending is part of the latency.
    first = Record(0, 1.0, 1.5, [(2.0, 1), (4.0, 2), (5.0, 3)], ended=5.0, prompt_tokens=10, cached_tokens=4)
    second = Record(1, 2.0, 2.0, [(2.5, 1)], ended=3.0, prompt_tokens=6, cached_tokens=0)
    failed = Record(2, 3.0, 3.0, [(3.5, 1)], ended=11.0, error="HTTP 429")
    assert list(inter_token_latencies(first)) == pytest.approx([1, 1, 1 / 3, 1 / 3, 1 / 3])
    summary = Summary.of([first, second, failed], Slo(ttft=1.0, itl=0.7))
    assert (summary.requests, summary.succeeded, summary.errors) == (3, 2, {"HTTP 429": 1})
    assert (summary.prompt_tokens, summary.cached_tokens, summary.output_tokens) == (16, 4, 7)
    assert summary.seconds == 10.0
    assert (summary.requests_per_s, summary.prompt_tokens_per_s, summary.output_tokens_per_s) == (0.2, 1.6, 0.7)
    assert summary.ttft == Distribution.of([1.0, 0.5])
    assert summary.e2e == Distribution.of([4.0, 0.5])
    assert summary.tpot == Distribution.of([3 / 5])
    assert summary.normalized == Distribution.of([4 / 6, 0.5])
    assert summary.itl is not None
    assert (summary.itl.count, summary.itl.mean, summary.itl.max) == (5, pytest.approx(3 / 5), 1.0)
    assert (summary.good_requests, summary.goodput) == (2, 0.2)
    assert Summary.of([first, second, failed], Slo(ttft=0.9)).good_requests == 1
    assert Summary.of([first, second, failed], Slo(itl=0.5)).good_requests == 1
    assert summary.send_lag is not None
    assert summary.send_lag.max == 0.5
    assert tokens_over_time([first, second], 5) == ([0, 0, 2, 0, 5], 1.0)


def test_nothing_came() -> None:
    summary = Summary.of([Record(0, 0.0, 0.0, ended=1.0, error="timeout")], Slo(ttft=1.0))
    assert (summary.ttft, summary.itl, summary.prompt_tokens, summary.goodput) == (None, None, None, 0.0)
    assert Summary.of([], Slo()).seconds == 0


def test_tokens_are_spread_over_responses(rng: random.Random) -> None:
    for _ in range(50):
        count, tokens = rng.randint(1, 20), rng.randint(1, 60)
        parts = spread([(float(i), 1) for i in range(count)], tokens)
        assert [time for time, _ in parts] == list(range(count))
        assert sum(tokens for _, tokens in parts) == tokens
        if count > 1:
            assert parts[0][1] == 1
            assert max(part for _, part in parts[1:]) - min(part for _, part in parts[1:]) <= 1


# Requests


@pytest.mark.parametrize(
    ("text", "mean", "deviation"),
    [
        ("40", 40, 0),
        ("10-50", 30, 11.8),
        ("normal:100:20", 100, 20),
        ("lognormal:100:50", 100, 50),
        ("exponential:100", 100, 100),
    ],
)
def test_lengths(text: str, mean: float, deviation: float, rng: random.Random) -> None:
    drawn = [parse_lengths("x", text).draw(rng) for _ in range(20_000)]
    assert np.mean(drawn) == pytest.approx(mean, rel=0.05)
    assert np.std(drawn) == pytest.approx(deviation, rel=0.1)
    assert min(drawn) >= 1


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "9-5", "many", "normal:1", "normal:x:1", "lognormal:0:1", "1:2", "nan"]
)
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(ConfigError, match="x: not a length such as N, LOW-HIGH"):
        parse_lengths("x", text)


def test_poisson_arrivals(rng: random.Random) -> None:
    seed = rng.randrange(2**32)
    arrivals = list(itertools.islice(poisson_arrivals(seed, 50.0), 20_000))
    gaps = np.diff(arrivals)
    assert np.mean(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert np.std(gaps) == pytest.approx(1 / 50, rel=0.05)  # of an exponential distribution, that is the mean
    assert arrivals == list(itertools.islice(poisson_arrivals(seed, 50.0), 20_000))
    assert list(itertools.islice(poisson_arrivals(seed, float("inf")), 3)) == [0, 0, 0]


def test_made_up_requests_share_prefixes_and_nothing_else(rng: random.Random) -> None:
    seed, maker = rng.randrange(2**32), text_maker(rng.randrange(2**32))
    shapes = synthetic_shapes(seed, parse_lengths("x", "20-30"), parse_lengths("x", "5"), 50, 3)
    words = [str(maker.prompt(shape.pieces)).split() for shape in itertools.islice(shapes, 60)]  # type: ignore[arg-type]
    assert all(70 <= len(each) <= 80 for each in words)
    assert len({tuple(each[:50]) for each in words}) == 3
    assert len({tuple(each[50:60]) for each in words}) == 60


def test_prompts_of_token_ids_have_their_lengths(rng: random.Random) -> None:
    maker = token_maker(rng.randrange(2**32), 1000)
    prompt = maker.prompt([Piece("a", 7), Piece("b", 9)])
    assert len(prompt) == 16
    assert all(256 <= token_id < 1000 for token_id in prompt)  # type: ignore[operator]
    assert maker.prompt([Piece("a", 3)]) == prompt[:3]


def test_text_of_a_tokenizer_has_exactly_the_lengths(tmp_path: Path, rng: random.Random) -> None:
    names = ["".join(rng.choices("abcdefgh", k=6)) for _ in range(200)]
    vocabulary = {name: number for number, name in enumerate(["?", "Ü", *dict.fromkeys(names)])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for place in (tmp_path, tmp_path / "tokenizer.json"):
        text = text_maker(5, str(place)).prompt([Piece("a", 30), Piece("b", 3)])
        ids = tokenizer.encode(str(text)).ids
        assert len(ids) == 33
        assert 0 not in ids
    with pytest.raises(ConfigError, match="tokenizer: cannot read"):
        text_maker(5, str(tmp_path / "none"))


def test_the_azure_trace(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(AZURE)
    rows = read_trace(tmp_path / "trace.csv")
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == [(4808, 10), (110, 1), (3180, 8)]
    assert list(trace_arrivals(rows, 2.0)) == pytest.approx([0, 0.01002, 0.026], abs=1e-6)


def test_the_mooncake_trace_shares_what_has_the_same_hash_id(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text(MOONCAKE)
    rows = read_trace(tmp_path / "trace.jsonl")
    assert rows == [TraceRow(0.0, 1300, 500, (7, 8, 9)), TraceRow(26.482, 1024, 3, (7, 10))]
    maker = text_maker(3)
    shapes = list(trace_shapes(rows, 1.0, 512))
    first, second = (str(maker.prompt(shape.pieces)).split() for shape in shapes)  # type: ignore[arg-type]
    assert (len(first), len(second)) == (1300, 1024)
    assert [shape.max_tokens for shape in shapes] == [500, 3]
    assert first[:512] == second[:512]
    assert first[512:528] != second[512:528]
    small = [str(maker.prompt(shape.pieces)).split() for shape in trace_shapes(rows, 0.125, 512)]  # type: ignore[arg-type]
    assert [len(each) for each in small] == [162, 128]
    assert small[0][:64] == small[1][:64] == first[:64]


def test_a_trace_without_times(tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("num_prefill_tokens,num_decode_tokens,pd_ratio\n26,5,5.2\n72,693,0.1\n")
    assert read_trace(file) == [TraceRow(None, 26, 5), TraceRow(None, 72, 693)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no requests"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no requests"),
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,5\n", "line 2: needs the lengths of prompt and answer"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,5,5\n", "line 2: needs the lengths"),
        ('{"timestamp": 1, "input_length": 5, "output_length": 5}\n{"timestamp": \n', "line 2: needs the lengths"),
        ('{"timestamp": 1, "input_length": -5, "output_length": 5}\n', "line 1: needs the lengths"),
    ],
)
def test_a_bad_trace(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "trace").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_trace(tmp_path / "trace")


# Sending


class SlowTarget:
    """Answers nothing until it is told to."""

    def __init__(self) -> None:
        self.answering = asyncio.Event()
        self.under_way = 0
        self.most_under_way = 0

    async def model(self) -> Model:
        return Model("slow")

    async def send(self, request: Request, arrived: Arrived) -> Usage:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await self.answering.wait()
        await asyncio.sleep(0)
        self.under_way -= 1
        if request.index % 2:
            raise RequestFailed("odd", "this one is odd")
        arrived(3)
        return Usage(output_tokens=3)

    async def close(self) -> None:
        pass


def some_requests(count: int, gap: float | None) -> Iterator[Request]:
    for index in range(count):
        yield Request(index, None if gap is None else index * gap, "x", 5)


async def until(load: Load, seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not seen():
        assert time.monotonic() < deadline, load.records
        await asyncio.sleep(0.001)


async def test_an_open_load_does_not_wait_for_answers() -> None:
    target = SlowTarget()
    load = Load(target, time.monotonic)
    sending = asyncio.ensure_future(load.run(some_requests(20, 0.001)))
    await until(load, lambda: load.running == 20)
    assert load.done == 0
    target.answering.set()
    await sending
    assert [record.error for record in load.records] == ["", "odd"] * 10
    assert [record.due for record in load.records] == [index * 0.001 for index in range(20)]
    assert all(record.sent >= record.due for record in load.records)
    assert (load.done, load.failed, load.tokens, load.running) == (20, 10, 30, 0)


async def test_a_closed_load_keeps_so_many_under_way() -> None:
    target = SlowTarget()
    load = Load(target, time.monotonic)
    sending = asyncio.ensure_future(load.run(some_requests(20, None), concurrency=3))
    await until(load, lambda: load.running == 3)
    target.answering.set()
    await sending
    assert (load.done, target.most_under_way) == (20, 3)


async def test_a_load_that_is_stopped_keeps_what_it_has() -> None:
    target = SlowTarget()
    load = Load(target, time.monotonic)
    sending = asyncio.ensure_future(load.run(some_requests(1000, 0.01)))
    await until(load, lambda: load.running >= 2)
    load.stop()
    await sending
    assert load.interrupted
    assert {record.error for record in load.records} == {"interrupted"}
    assert len(load.records) < 1000


async def test_after_the_duration_nothing_is_sent() -> None:
    target = SlowTarget()
    target.answering.set()
    load = Load(target, time.monotonic, duration=0.05)
    await load.run(some_requests(1000, 0.01))
    assert len(load.records) == 5
    load = Load(target, time.monotonic, duration=0.05)
    await load.run((Request(index, None, "x", 1) for index in itertools.count()), concurrency=2)
    assert load.records[-1].due < 0.05


async def test_a_request_that_takes_too_long() -> None:
    load = Load(SlowTarget(), time.monotonic, timeout=0.01)
    await load.run(some_requests(2, 0.0))
    assert [record.error for record in load.records] == ["timeout", "timeout"]


# The command


def test_a_load_on_octavo(address: str, servicer: ScriptedGeneration, bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "secret")
    flags = "--rate inf --requests 12 --prompt-tokens 20 --output-tokens 7 --ignore-eos --warmup 2 --slo-ttft 60"
    exit_code, result = bench("--address", address, *flags.split(), "--temperature", "0.5", "--response-interval", "0")
    assert exit_code == 0
    summary = result["summary"]
    assert (summary["requests"], summary["succeeded"], summary["good_requests"]) == (12, 12, 12)
    assert (summary["prompt_tokens"], summary["output_tokens"], summary["cached_tokens"]) == (240, 240, 12)
    assert summary["ttft"]["count"] == 12
    assert summary["itl"]["count"] == 12 * 19
    assert result["settings"]["model"] == "parrot"
    assert result["settings"]["prompt_tokens"] == "20"
    assert [row["index"] for row in result["requests"]] == list(range(12))
    assert len(servicer.requests) == 14
    sampling = servicer.requests[-1].sampling
    assert (sampling.max_tokens, sampling.ignore_eos, sampling.temperature) == (7, True, 0.5)
    assert servicer.requests[-1].HasField("response_interval")
    assert servicer.metadata["authorization"] == "Bearer secret"


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_load_on_openais_interface(
    url: str, scripted: ScriptedOpenAI, bench: Bench, monkeypatch: Any, endpoint: str
) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "secret")
    flags = "--concurrency 3 --requests 6 --prompt-tokens 10 --output-tokens 7 --ignore-eos"
    exit_code, result = bench("--url", url, "--endpoint", endpoint, *flags.split())
    assert exit_code == 0
    summary = result["summary"]
    assert (summary["succeeded"], summary["prompt_tokens"], summary["cached_tokens"]) == (6, 60, 6)
    assert summary["output_tokens"] == 120  # as the server counted, not as many as there were events
    assert summary["itl"]["count"] == 6 * 19  # of 20 tokens
    assert result["settings"]["model"] == MODEL
    assert scripted.headers["authorization"] == "Bearer secret"
    body = scripted.bodies[-1]
    assert (body["max_tokens"], body["ignore_eos"], body["stream"], body["temperature"]) == (7, True, True, 0)


def test_two_servers_get_the_same_requests(
    address: str, servicer: ScriptedGeneration, url: str, scripted: ScriptedOpenAI, bench: Bench
) -> None:
    flags = "--requests 8 --prompt-tokens 5-30 --shared-prefix-tokens 4 --prefix-groups 2 --output-tokens 1-9"
    for place in (["--address", address], ["--url", url]):
        assert bench(*place, *flags.split(), "--concurrency", "1", "--seed", "7")[0] == 0
    assert [request.prompt.text for request in servicer.requests] == scripted.prompts
    assert [request.sampling.max_tokens for request in servicer.requests] == [
        body["max_tokens"] for body in scripted.bodies
    ]
    assert bench("--address", address, *flags.split(), "--concurrency", "1", "--seed", "8")[0] == 0
    assert servicer.requests[8].prompt.text != servicer.requests[0].prompt.text


def test_token_ids(
    address: str, servicer: ScriptedGeneration, url: str, scripted: ScriptedOpenAI, bench: Bench
) -> None:
    flags = ["--token-ids", "--requests", "2", "--prompt-tokens", "9", "--concurrency", "1"]
    assert bench("--address", address, *flags)[0] == 0
    assert bench("--url", url, "--vocab-size", "1000", *flags)[0] == 0
    assert [list(request.prompt.tokens.token_ids) for request in servicer.requests] == scripted.prompts


def test_failures_by_kind(url: str, address: str, tmp_path: Path, bench: Bench, capsys: Any) -> None:
    lines = ['{"prompt": "to be", "output_tokens": 3}', "refuse me", "please fail", "please break it", "a silent one"]
    exit_code, result = bench("--url", url, "--prompts", prompts_file(tmp_path, *lines), "--concurrency", "1")
    assert exit_code == 0
    assert result["summary"]["errors"] == {"HTTP 429": 1, "error in the stream": 1, "broken off": 1}
    assert [row["error"] for row in result["requests"]][:2] == [None, "HTTP 429"]
    assert result["summary"]["output_tokens"] == 4 + 3  # the silent one did not say, and had three events
    shown = capsys.readouterr().out
    assert "HTTP 429: the queue is full" in shown
    assert "error in the stream: no executor" in shown
    prompts = prompts_file(tmp_path, "refuse", "full", "forever")
    exit_code, result = bench("--address", address, "--prompts", prompts, "--rate", "inf", "--timeout", "2")
    assert exit_code == 1
    assert result["summary"]["errors"] == {"INVALID_ARGUMENT": 1, "RESOURCE_EXHAUSTED": 1, "timeout": 1}


def test_a_trace(address: str, servicer: ScriptedGeneration, tmp_path: Path, bench: Bench) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(MOONCAKE)
    flags = ["--speedup", "1000", "--length-scale", "0.0625"]
    exit_code, result = bench("--address", address, "--trace", str(file), *flags)
    assert exit_code == 0
    assert [row["due"] for row in result["requests"]] == pytest.approx([0, 0.026482])
    assert [len(request.prompt.text.split()) for request in servicer.requests] == [81, 64]
    assert [request.sampling.max_tokens for request in servicer.requests] == [31, 1]


def test_what_is_shown(address: str, tmp_path: Path, capsys: Any) -> None:
    plot = tmp_path / "plot.svg"
    assert (
        run(
            [
                "bench",
                "--address",
                address,
                "--requests",
                "40",
                "--prompt-tokens",
                "9",
                "--plot",
                str(plot),
                "--slo-ttft",
                "60",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    for words in ("parrot on", "time to first token", "between tokens", "p99", "40 of 40 in", "kept every limit"):
        assert words in shown
    assert "█" in shown
    assert plot.read_text().startswith("<svg")


def test_json_on_standard_output_is_alone_there(address: str, capsys: Any) -> None:
    assert run(["bench", "--address", address, "--requests", "2", "--json", "-"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["summary"]["succeeded"] == 2
    assert "2 of 2" in printed.err


def test_ctrl_c_shows_what_there_is(address: str, tmp_path: Path, servicer: ScriptedGeneration) -> None:
    prompts = prompts_file(tmp_path, "to be or not", "wait forever")
    command = [sys.executable, "-m", "services.cli.app", "bench", "--address", address, "--prompts", prompts]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    process = subprocess.Popen(
        [*command, "--concurrency", "1"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 30
    while len(servicer.requests) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "(interrupted)" in out.decode()
    assert "1 of 2" in out.decode()
    assert servicer.client_left.wait(10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "0"], "rate: must be more than 0"),
        (["--rate", "1", "--concurrency", "1"], "rate, concurrency: only one of them"),
        (["--concurrency", "0"], "concurrency: must be at least 1"),
        (["--duration", "soon"], "duration: not a time"),
        (["--rate", "inf", "--duration", "5s"], "requests: is missing"),
        (["--prompt-tokens", "many"], "prompt_tokens: not a length"),
        (["--trace", "/no/such/file"], "trace: cannot read /no/such/file: No such file"),
        (["--trace", "x", "--prompts", "y"], "prompts, trace: only one of them"),
        (["--prompts", "/no/such/file"], "prompts: cannot read"),
        (["--speedup", "2"], "speedup: is for a trace"),
        (["--prompts", "x", "--prefix-groups", "2"], "prefix_groups: is for made-up prompts"),
        (["--vocab-size", "99"], "vocab_size: is for --token-ids"),
        (["--url", "localhost:8000"], "url: must begin with http://"),
        (["--url", "http://x/v1", "--token-ids"], "vocab_size: is missing"),
        (["--token-ids", "--endpoint", "chat"], "token_ids: a message of a chat is text"),
        (["--url", "http://x/v1", "--response-interval", "0"], "response_interval: is only known over gRPC"),
        (["--plot", "x.bmp"], "plot: must end with .svg"),
        (["--rows"], "rows: are part of the JSON"),
        (["--model", "other"], "there is no model 'other'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "--address", address, *arguments]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert message in printed.err


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--url", "http://127.0.0.1:9/v1", "--requests", "1"]) == 2
    assert "cannot use http://127.0.0.1:9/v1: " in capsys.readouterr().err
    assert run(["bench", "--address", "127.0.0.1:9", "--requests", "1"]) == 2


def test_a_client_that_is_late_says_so() -> None:
    late = [Record(number, 0.0, 0.5, [(1.0, 1)], ended=1.0) for number in range(10)]
    assert "sent up to 500.0 ms late" in next(warnings(Summary.of(late, Slo())))
    punctual = [Record(number, 0.0, 0.001, [(1.0, 1)], ended=1.0) for number in range(10)]
    assert list(warnings(Summary.of(punctual, Slo(), [0.001] * 10))) == []
    assert "read responses up to 200.0 ms late" in next(warnings(Summary.of(punctual, Slo(), [0.2] * 10)))


def test_over_tls(tmp_path: Path, scripted: ScriptedOpenAI, capsys: pytest.CaptureFixture[str]) -> None:
    make_certificates(tmp_path, (), 1, datetime.now(timezone.utc))
    with serving(scripted, (tmp_path / "gateway.pem", tmp_path / "gateway-key.pem")) as url:
        assert url.startswith("https://")
        assert run(["bench", "--url", url, "--tls-ca", str(tmp_path / "ca.pem"), "--requests", "2"]) == 0
        assert "2 of 2" in capsys.readouterr().out
        assert run(["bench", "--url", url, "--requests", "2"]) == 2
        assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
