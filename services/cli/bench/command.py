"""``octavo bench``: puts load on a server and says how it bears it."""

from dataclasses import fields
from typing import Any

import typer

from services.cli.bench.settings import LoadOptions, ReportOptions, TargetOptions, WorkloadOptions
from services.cli.options import ClientOptions, expand


@expand
def bench(
    server: ClientOptions,
    target: TargetOptions,
    load: LoadOptions,
    workload: WorkloadOptions,
    report: ReportOptions,
) -> None:
    """Put load on an Octavo, or on any OpenAI-compatible server, and say how it bears it.

    Latencies count from the time that a request was due, so a slow server can't hide behind a slow client. Ctrl-C ends
    the load and shows what there is.
    """
    from services.cli.bench.bench import run

    asked: dict[str, Any] = {}
    for group in (server, target, load, workload, report):
        asked |= {each.name: getattr(group, each.name) for each in fields(group)}
    exit_code = run(server, target, load, workload, report, asked)
    raise typer.Exit(exit_code)
