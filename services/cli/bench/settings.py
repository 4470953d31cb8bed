# ruff: noqa: RUF009 - setting() returns a dataclass field
"""What ``octavo bench`` can be told."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_type_hints

from services.cli.bench.lengths import parse_lengths
from services.cli.durations import parse_duration
from services.config import ConfigError, setting
from services.config.settings import check_value

Endpoint = Literal["completions", "chat"]

DEFAULT_CONCURRENCY = 8
DEFAULT_REQUESTS = 100


@dataclass(frozen=True, kw_only=True)
class _Checked:
    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self))
        for each in fields(self):
            check_value(each.name, kinds[each.name], each.metadata, getattr(self, each.name))


@dataclass(frozen=True, kw_only=True)
class TargetOptions(_Checked):
    """What is loaded, and with which kind of request."""

    url: str | None = setting(
        None, "Base URL of an OpenAI-compatible server to load instead, such as http://127.0.0.1:8000/v1."
    )
    endpoint: Endpoint = setting("completions", "Send a prompt as it is, or as a user's message in a chat.")
    model: str | None = setting(None, "Name of the model; the only or first one when absent.")
    ignore_eos: bool = setting(False, "Answers go on past the end of sequence, to their full length.")
    temperature: float = setting(0.0, "0 always takes the most likely token.", minimum=0)
    response_interval: float | None = setting(
        None,
        "Over gRPC, seconds of which tokens come as one response; 0 is each as it comes. As the server likes when"
        " absent.",
        minimum=0,
        maximum=60,
    )
    timeout: float | None = setting(None, "Seconds after which a request is given up, and is an error.", minimum=0.001)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"url: must begin with http:// or https://, not {self.url!r}")


@dataclass(frozen=True, kw_only=True)
class LoadOptions(_Checked):
    """When requests are sent, and how many."""

    rate: float | None = setting(
        None,
        "Requests a second on average, at random times (Poisson), whether answers come or not; inf is all at once.",
    )
    concurrency: int | None = setting(
        None,
        f"Instead of a rate, so many requests at a time, the next one when one ends; {DEFAULT_CONCURRENCY} where"
        " nothing else says when.",
        minimum=1,
    )
    requests: int | None = setting(
        None,
        f"How many; {DEFAULT_REQUESTS} when absent, or all of a trace or a file of prompts, or as many as --duration"
        " lets.",
        minimum=1,
    )
    duration: str | None = setting(None, "Send none after so long, such as 90s or 5m; those under way are finished.")
    warmup: int = setting(
        0, "So many requests before, which are not counted and share nothing with the others.", minimum=0
    )
    seed: int = setting(0, "The same seed gives the same requests at the same times, whatever is loaded.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate is not None and not self.rate > 0:
            raise ConfigError(f"rate: must be more than 0, not {self.rate}")
        if self.rate is not None and self.concurrency is not None:
            raise ConfigError("rate, concurrency: only one of them says when requests are sent")
        if self.rate is not None and math.isinf(self.rate) and self.duration is not None and self.requests is None:
            raise ConfigError("requests: is missing; all at once would be endlessly many")
        if self.seconds is not None and not self.seconds > 0:
            raise ConfigError(f"duration: must be more than 0, not {self.duration!r}")

    @property
    def seconds(self) -> float | None:
        """Of the duration."""
        return None if self.duration is None else parse_duration("duration", self.duration)


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(_Checked):
    """What the requests are."""

    prompt_tokens: str = setting(
        "128",
        "Length of made-up prompts: N, LOW-HIGH, normal:MEAN:DEVIATION, lognormal:MEAN:DEVIATION, exponential:MEAN.",
    )
    output_tokens: str = setting("128", "Most tokens of an answer, likewise.")
    shared_prefix_tokens: int = setting(
        0, "Tokens in front of each made-up prompt that all of its group have in common.", minimum=0
    )
    prefix_groups: int = setting(1, "How many such groups there are.", minimum=1)
    prompts: Path | None = setting(
        None, 'File with one prompt a line, as text or as JSON such as {"prompt": "...", "output_tokens": 20}.'
    )
    trace: Path | None = setting(
        None,
        "CSV file or lines of JSON with arrival times and lengths, as the Azure LLM inference trace or Mooncake's; a"
        " rate or concurrency overrides its times.",
    )
    speedup: float = setting(1.0, "How many times as fast as in the trace.", minimum=1e-6)
    length_scale: float = setting(1.0, "Lengths of the trace are multiplied by this.", minimum=1e-6)
    trace_block_tokens: int = setting(512, "Tokens that one hash id of a trace stands for.", minimum=1)
    tokenizer: str | None = setting(
        None,
        "Tokenizer file or folder of the model, to make text of exactly the lengths. Without it, a word counts as a"
        " token.",
    )
    token_ids: bool = setting(False, "Send prompts as random token ids, which have exactly the lengths.")
    vocab_size: int | None = setting(None, "Token ids are below this; an Octavo server says it itself.", minimum=2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompts is not None and self.trace is not None:
            raise ConfigError("prompts, trace: only one of them says what the requests are")
        if self.tokenizer is not None and self.token_ids:
            raise ConfigError("tokenizer, token_ids: only one of them says how prompts are made")
        if self.trace is None:
            self._refuse("speedup", "length_scale", "trace_block_tokens", why="is for a trace")
        if self.trace is not None or self.prompts is not None:
            self._refuse("prompt_tokens", "shared_prefix_tokens", "prefix_groups", why="is for made-up prompts")
        if not self.token_ids:
            self._refuse("vocab_size", why="is for --token-ids")
        for name in ("prompt_tokens", "output_tokens"):
            parse_lengths(name, getattr(self, name))

    def _refuse(self, *names: str, why: str) -> None:
        """Settings that would do nothing."""
        given = [each.name for each in fields(self) if each.name in names and getattr(self, each.name) != each.default]
        if given:
            raise ConfigError(f"{given[0]}: {why}")


@dataclass(frozen=True, kw_only=True)
class ReportOptions(_Checked):
    """What is said about it."""

    slo_ttft: float | None = setting(
        None, "A request is good if its first token is there in so many seconds.", minimum=0
    )
    slo_itl: float | None = setting(
        None, "A request is good if its tokens follow one another in so many seconds on average.", minimum=0
    )
    slo_e2e: float | None = setting(None, "A request is good if it is complete in so many seconds.", minimum=0)
    json: Path | None = setting(None, "File for the settings and results, as JSON; - is standard output.")
    rows: bool = setting(False, "Each request is in the JSON, too.")
    plot: Path | None = setting(None, "SVG file for what is shown.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.plot is not None and self.plot.suffix != ".svg":
            raise ConfigError(f"plot: must end with .svg, not {self.plot}")
        if self.rows and self.json is None:
            raise ConfigError("rows: are part of the JSON; say --json FILE")
