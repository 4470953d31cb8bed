"""Commands that start processes: ``serve``, ``gateway``, ``kvmanager``, ``executor``, ``demo``; and ``fetch``."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.errors import CommandError
from services.cli.options import expand, takes_stack_settings
from services.config import (
    MAX_PORT,
    ConfigError,
    ExecutorConfig,
    GatewayConfig,
    KVManagerConfig,
    check_no_certificates,
)
from services.ports import check_free


@expand
def gateway(config: GatewayConfig) -> None:
    """Run the gateway: text in, text out, for clients."""
    from services.model_store import resolve_model

    check_free(config.host, config.port)
    if config.http:
        check_free(config.host, config.http_port)
    config = replace(config, model=resolve_model(config.model))

    with _starting():
        from services.gateway.server import run

        run(config)


@expand
def kvmanager(config: KVManagerConfig) -> None:
    """Run the KV manager: the scheduler and the block tables."""
    check_free(config.host, config.port)

    with _starting():
        from services.kvmanager.server import run

        run(config)


@expand
def executor(config: ExecutorConfig) -> None:
    """Run an executor: the model and its key/value memory."""
    from services.model_store import resolve_model

    check_free(config.host, config.port)
    config = replace(config, model=resolve_model(config.model))

    # Takes seconds: not before it is known that there are a port and a model.
    with _starting():
        from services.executor.server import run

        run(config)


@takes_stack_settings
def serve(
    context: typer.Context,
    kvmanager_port: Annotated[
        int,
        typer.Option(min=0, max=MAX_PORT, help="Port of the KV manager, the standby has the next; 0 takes free ones."),
    ] = 0,
    executor_port: Annotated[
        int,
        typer.Option(min=0, max=MAX_PORT, help="Port of the first executor, others follow; 0 takes free ones."),
    ] = 0,
    num_executors: Annotated[
        int, typer.Option(min=1, help="Executors, each with the whole model and key/value memory of its own.")
    ] = 1,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby",
            help="Start a second KV manager, which takes over when the first one fails; needs a Redis as --state.",
        ),
    ] = False,
    tls_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with a certificate for each service, as octavo certs makes it: all speak TLS."),
    ] = None,
    **settings: Any,
) -> None:
    """Run gateway, KV manager and executors as supervised processes on this machine.

    Ctrl-C stops them all. Each process also reads its own settings (OCTAVO_EXECUTOR_..., [executor] in the TOML file).
    """
    from rich.console import Console

    from services.launcher import Stack, StackError, octavo_certificates, octavo_command, serve_until_stopped
    from services.model_store import resolve_model

    if standby and settings["state"] == KVManagerConfig.state:
        raise ConfigError(
            "standby: two KV managers share what they know in a Redis: give it as --state redis://HOST:PORT"
        )
    check_no_certificates((context.parent and context.parent.default_map) or {})
    check_free(settings["host"], settings["port"])
    http_port = settings["http_port"] if settings["http"] else None
    if http_port is not None:
        check_free(settings["host"], http_port)
    name = settings["model_name"] or GatewayConfig(model=settings["model"]).model_name
    # Only what was asked for is handed down: for the rest each process has its own environment, table and defaults.
    asked = {key: value for key, value in settings.items() if _was_asked_for(context, key)}
    asked |= {
        "model": resolve_model(settings["model"]),
        "model_name": name,
        "drain_seconds": settings["drain_seconds"],
    }
    config_file: Path | None = context.parent.params["config"] if context.parent else None
    console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
    stack = Stack(
        octavo_command(asked, config_file, tls_dir),
        host=settings["host"],
        port=settings["port"],
        http_port=http_port,
        kvmanager_port=kvmanager_port,
        executor_port=executor_port,
        num_executors=num_executors,
        standby=standby,
        drain_seconds=settings["drain_seconds"],
        certificates=octavo_certificates(asked, tls_dir),
        log=console.print,
    )
    try:
        serve_until_stopped(stack, name, console)
    except StackError as error:
        raise CommandError(str(error), error.exit_code) from error


def fetch(
    model: Annotated[str, typer.Argument(help="Which model; smollm2 is the demo model.")] = "smollm2",
) -> None:
    """Fetch the demo model and print its path.

    It is kept in $OCTAVO_CACHE (~/.cache/octavo) and checked against its SHA-256.
    """
    from services.model_store import fetch_model

    typer.echo(fetch_model(model))


def demo() -> None:
    """Show it at work with the demo model.

    Starts the three processes, sends a few chats at once, streams the answers, says what it took and stops.
    """
    from services.demo import run
    from services.launcher import StackError

    try:
        exit_code = run()
    except StackError as error:
        raise CommandError(str(error), error.exit_code) from error
    raise typer.Exit(exit_code)


@contextmanager
def _starting() -> Iterator[None]:
    """Looks for no garbage until the service runs: there is none in what a start loads, and that is a lot."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _was_asked_for(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"
