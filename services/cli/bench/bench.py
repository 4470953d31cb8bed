"""One run of ``octavo bench``: from what it was told to what it says."""

from __future__ import annotations

import asyncio
import itertools
import signal
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from rich.console import Console

from services.cli.bench.lengths import parse_lengths
from services.cli.bench.live import shown
from services.cli.bench.load import Load
from services.cli.bench.outcome import say
from services.cli.bench.prompts import PromptMaker, text_maker, token_maker
from services.cli.bench.settings import (
    DEFAULT_CONCURRENCY,
    DEFAULT_REQUESTS,
    LoadOptions,
    ReportOptions,
    TargetOptions,
    WorkloadOptions,
)
from services.cli.bench.statistics import Slo, Summary
from services.cli.bench.target import Model, Target, TargetUnusable
from services.cli.bench.traces import TraceRow, read_trace
from services.cli.bench.workload import (
    Workload,
    poisson_arrivals,
    prompt_shapes,
    read_prompts,
    synthetic_shapes,
    trace_arrivals,
    trace_shapes,
)
from services.cli.errors import INTERRUPTED, REFUSED, UNUSABLE, CommandError
from services.cli.options import ClientOptions
from services.config import ConfigError, read_api_key

T = TypeVar("T")


def run(
    server: ClientOptions,
    target: TargetOptions,
    load: LoadOptions,
    work: WorkloadOptions,
    shown_as: ReportOptions,
    asked: Mapping[str, Any],
) -> int:
    """Runs it, says what came of it, and returns the exit code: 0 where any request succeeded.

    Args:
        asked: All of that by name, for the JSON.

    Raises:
        CommandError: There is no server.
        ConfigError: It can't be done as it was told.
    """
    _check(target, load, work)
    trace = read_trace(work.trace) if work.trace is not None else []
    place = target.url or server.address
    try:
        model, done = _run_async(_bench(server, target, load, work, trace))
    except TargetUnusable as error:
        raise CommandError(f"cannot use {place}: {error}", UNUSABLE) from error
    slo = Slo(shown_as.slo_ttft, shown_as.slo_itl, shown_as.slo_e2e)
    summary = Summary.of(done.records, slo, done.lateness)
    title = f"{model.name} on {place}" + (" (interrupted)" if done.interrupted else "")
    say(title, summary, done, shown_as, {**asked, "model": model.name})
    if done.interrupted:
        return INTERRUPTED
    return 0 if summary.succeeded else REFUSED


def _check(target: TargetOptions, load: LoadOptions, work: WorkloadOptions) -> None:
    if work.token_ids and target.endpoint == "chat":
        raise ConfigError("token_ids: a message of a chat is text")
    if work.token_ids and work.prompts is not None:
        raise ConfigError("token_ids: prompts of a file are text")
    if work.token_ids and target.url is not None and work.vocab_size is None:
        raise ConfigError("vocab_size: is missing; an OpenAI-compatible server does not say it")
    if target.url is not None and target.response_interval is not None:
        raise ConfigError("response_interval: is only known over gRPC")


async def _bench(
    server: ClientOptions, options: TargetOptions, load: LoadOptions, work: WorkloadOptions, trace: list[TraceRow]
) -> tuple[Model, Load]:
    target = _open_target(server, options)
    try:
        model = await target.model()
        workload = make_workload(load, work, trace, model)
        warming = Load(target, time.monotonic, timeout=options.timeout)
        running = Load(target, time.monotonic, duration=load.seconds, timeout=options.timeout)
        console = Console(stderr=True)
        with _stopping_at_ctrl_c(warming, running):
            if load.warmup:
                async with shown(warming, load.warmup, console):
                    await warming.run(workload.warm_up(load.warmup), load.concurrency or DEFAULT_CONCURRENCY)
            if not running.interrupted:
                async with shown(running, workload.count, console, load.seconds):
                    await running.run(workload.requests(), _concurrency(load, trace))
        return model, running
    finally:
        await target.close()


def _concurrency(load: LoadOptions, trace: list[TraceRow]) -> int | None:
    """None where each request is due at a time."""
    if load.concurrency is not None:
        return load.concurrency
    return None if load.rate is not None or trace else DEFAULT_CONCURRENCY


def make_workload(load: LoadOptions, work: WorkloadOptions, trace: list[TraceRow], model: Model) -> Workload:
    """The requests as they were asked for.

    Raises:
        ConfigError: Of the tokenizer, the file of prompts, or a trace without times.
    """
    output = parse_lengths("output_tokens", work.output_tokens)
    maker = _maker(load, work, model)
    arrivals = _arrivals_of(load, work, trace)
    if trace:
        count = min(len(trace), load.requests or len(trace))
        return Workload(lambda: trace_shapes(trace, work.length_scale, work.trace_block_tokens), arrivals, maker, count)
    if work.prompts is not None:
        prompts = read_prompts(work.prompts)
        default = None if load.duration is not None else len(prompts)
        return Workload(lambda: prompt_shapes(load.seed, prompts, output), arrivals, maker, load.requests or default)
    prompt = parse_lengths("prompt_tokens", work.prompt_tokens)
    default = None if load.duration is not None else DEFAULT_REQUESTS
    return Workload(
        lambda: synthetic_shapes(load.seed, prompt, output, work.shared_prefix_tokens, work.prefix_groups),
        arrivals,
        maker,
        load.requests or default,
    )


def _arrivals_of(
    load: LoadOptions, work: WorkloadOptions, trace: list[TraceRow]
) -> Callable[[], Iterator[float | None]]:
    rate = load.rate
    if rate is not None:
        return lambda: poisson_arrivals(load.seed, rate)
    if load.concurrency is not None or not trace:
        return lambda: itertools.repeat(None)
    if any(row.at is None for row in trace):
        raise ConfigError(f"trace: {work.trace} has no times; say --rate or --concurrency")
    return lambda: trace_arrivals(trace, work.speedup)


def _maker(load: LoadOptions, work: WorkloadOptions, model: Model) -> PromptMaker:
    if not work.token_ids:
        return text_maker(load.seed, work.tokenizer)
    vocab_size = work.vocab_size or model.vocab_size
    assert vocab_size is not None, "checked before"
    return token_maker(load.seed, vocab_size)


def _open_target(server: ClientOptions, options: TargetOptions) -> Target:
    """Raises ConfigError where a key or certificate can't be used, or a package is missing."""
    chat = options.endpoint == "chat"
    sampling: dict[str, Any] = {"temperature": options.temperature}
    if options.ignore_eos:
        sampling["ignore_eos"] = True
    api_key = read_api_key(server.api_key_file)
    if options.url is not None:
        try:
            from services.cli.bench.openai_target import OpenAITarget
        except ModuleNotFoundError as error:
            if error.name != "aiohttp":
                raise
            raise CommandError(
                "octavo bench --url needs one more package: pip install 'octavo[bench]'", UNUSABLE
            ) from error
        tls = _trusting(server.tls_ca)
        return OpenAITarget(options.url, options.model or "", sampling, chat=chat, api_key=api_key, tls=tls)

    from octavo.client import AsyncClient
    from services.cli.bench.octavo_target import OctavoTarget

    try:
        client = AsyncClient(server.addresses(), api_key=api_key, tls=server.tls, tls_ca=server.tls_ca, retry=None)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    interval = options.response_interval
    return OctavoTarget(client, options.model or "", sampling, chat=chat, response_interval=interval)


def _trusting(authorities: str | None) -> ssl.SSLContext | None:
    if authorities is None:
        return None
    try:
        return ssl.create_default_context(cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_ca: cannot use {authorities}: {error}") from error


@contextmanager
def _stopping_at_ctrl_c(*loads: Load) -> Iterator[None]:
    """Ends all loads at Ctrl-C; what they have so far stays."""

    def stop() -> None:
        for load in loads:
            load.stop()

    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError):  # on Windows
        loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)


def _run_async(main: Coroutine[Any, Any, T]) -> T:
    """With uvloop where there is one: a client that reads faster measures more truly."""
    try:
        import uvloop
    except ImportError:  # not on Windows
        return asyncio.run(main)
    return uvloop.run(main)
