"""Traces of real traffic: when requests arrived, how long they were, what they had in common.

Read are CSV files with a header, such as the Azure LLM inference trace (``TIMESTAMP,ContextTokens,GeneratedTokens``),
and lines of JSON, such as Mooncake's (``timestamp, input_length, output_length, hash_ids``).
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from services.config import ConfigError

_PROMPT_TOKENS = ("input_length", "contexttokens", "num_prefill_tokens", "prompt_tokens", "input_tokens")
_OUTPUT_TOKENS = ("output_length", "generatedtokens", "num_decode_tokens", "output_tokens")
# A time that is no date: Mooncake's are milliseconds, all others seconds.
_TIMES = ("timestamp", "arrived_at", "arrival_time")


@dataclass(frozen=True)
class TraceRow:
    """One request of a trace.

    Attributes:
        at: Seconds after the first one; None in a file without times.
        prompt_tokens: Length of the prompt.
        output_tokens: Length of the answer.
        hash_ids: What each of the prompt's blocks of tokens is; the same id is the same content.
    """

    at: float | None
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path) -> list[TraceRow]:
    """The requests in the order of their arrival.

    Raises:
        ConfigError: The file cannot be read, or a row is none; says which line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.read(1)
            file.seek(0)
            lines = _json_rows(file) if first == "{" else _csv_rows(file)
            rows = [_row(path, number, row, in_json=first == "{") for number, row in lines]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"trace: cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if not rows:
        raise ConfigError(f"trace: {path} has no requests")
    if any(row.at is None for row in rows):
        return rows
    rows.sort(key=_arrival)
    start = _arrival(rows[0])
    return [TraceRow(_arrival(row) - start, row.prompt_tokens, row.output_tokens, row.hash_ids) for row in rows]


def _arrival(row: TraceRow) -> float:
    return row.at or 0.0


def _csv_rows(file: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(file)
    for row in reader:
        yield reader.line_num, row


def _json_rows(file: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        yield number, row if isinstance(row, dict) else {}


def _row(path: Path, number: int, row: Mapping[str, Any], *, in_json: bool) -> TraceRow:
    values = {str(name).strip().lower(): value for name, value in row.items()}
    try:
        return TraceRow(
            _seconds(_first(values, _TIMES), in_json and "timestamp" in values),
            _length(_first(values, _PROMPT_TOKENS)),
            _length(_first(values, _OUTPUT_TOKENS)),
            tuple(int(each) for each in values.get("hash_ids") or ()),
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"trace: {path}, line {number}: needs the lengths of prompt and answer, in columns such as"
            f" ContextTokens and GeneratedTokens, or input_length and output_length; {error}"
        ) from error


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((values[name] for name in names if values.get(name) not in (None, "")), None)


def _length(value: Any) -> int:
    if value is None:
        raise ValueError("one is missing")
    length = int(float(value))
    if length < 0:
        raise ValueError(f"{length} is none")
    return max(length, 1)


def _seconds(value: Any, in_milliseconds: bool) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value) / (1000 if in_milliseconds else 1)
    except ValueError:
        return _seconds_of_date(str(value))
    if not math.isfinite(seconds):
        raise ValueError(f"{value!r} is no time")
    return seconds


def _seconds_of_date(text: str) -> float:
    """Digits of the fraction beyond the sixth are left out, as Python's dates have no more."""
    whole, point, rest = text.strip().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    date = datetime.fromisoformat(f"{whole}{point}{digits[:6].ljust(6, '0') if point else ''}{rest[len(digits) :]}")
    return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
