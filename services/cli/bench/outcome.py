"""Where the results of a load go: the terminal, a file of JSON, an image."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from services.cli.bench.load import Load, Record
from services.cli.bench.report import report, save_svg, warnings
from services.cli.bench.settings import ReportOptions
from services.cli.bench.statistics import Summary, end_to_end, time_per_output_token, time_to_first_token
from services.config import ConfigError

_STANDARD_OUTPUT = Path("-")


def say(title: str, summary: Summary, load: Load, options: ReportOptions, asked: Mapping[str, Any]) -> None:
    """Shows it, and writes the files that were asked for.

    Args:
        asked: The command's settings by name.

    Raises:
        ConfigError: A file can't be written.
    """
    to_stdout = options.json == _STANDARD_OUTPUT
    console = Console(stderr=to_stdout, highlight=False, emoji=False)
    picture = report(title, summary, load.records, console.width)
    console.print(picture)
    if summary.errors:
        for kind, message in _first_messages(load.records).items():
            console.print(f"{kind}: {message}", style="red", markup=False, soft_wrap=True)
    if options.plot is not None:
        _writing("plot", options.plot, lambda: save_svg(str(options.plot), picture))
    if options.json is not None:
        text = json.dumps(as_json(summary, load, asked, rows=options.rows), indent=2)
        if to_stdout:
            print(text)
        else:
            path = options.json
            _writing("json", path, lambda: path.write_text(text + "\n", "utf-8"))


def as_json(summary: Summary, load: Load, asked: Mapping[str, Any], *, rows: bool) -> dict[str, Any]:
    """Everything for programs. Times in seconds."""
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in asked.items()}
    settings = {name: "inf" if value == math.inf else value for name, value in settings.items()}
    result = {
        "settings": settings,
        "interrupted": load.interrupted,
        "summary": asdict(summary),
        "warnings": list(warnings(summary)),
    }
    return result | {"requests": [_row(record) for record in load.records]} if rows else result


def _row(record: Record) -> dict[str, Any]:
    return {
        "index": record.index,
        "due": record.due,
        "sent": record.sent,
        "ended": record.ended,
        "error": record.error or None,
        "message": record.message or None,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "ttft": time_to_first_token(record),
        "tpot": time_per_output_token(record),
        "e2e": end_to_end(record),
        "arrivals": record.arrivals,
    }


def _first_messages(records: list[Record]) -> dict[str, str]:
    """Of each kind of failure what the first one said."""
    messages: dict[str, str] = {}
    for record in records:
        if record.error and record.error != "interrupted":
            messages.setdefault(record.error, record.message)
    return messages


def _writing(name: str, path: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        raise ConfigError(f"{name}: cannot write {path}: {error.strerror}") from error
