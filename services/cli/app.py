"""``octavo``: the command line.

Commands import what they need when they run, so that ``octavo --help`` and ``octavo health`` start fast and
``octavo gateway`` never loads the model's libraries.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli import certs, chat, check, explain, generate, pins, processes, tenants
from services.cli.bench import command as bench
from services.cli.errors import INTERRUPTED, UNUSABLE, CommandError
from services.cli.top import command as top
from services.config import ConfigError, read_toml

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"auto_envvar_prefix": "OCTAVO", "help_option_names": ["-h", "--help"]},
)
for command in (
    processes.serve,
    processes.gateway,
    processes.kvmanager,
    processes.executor,
    chat.chat,
    generate.generate,
    pins.pin,
    pins.unpin,
    pins.pins,
    check.models,
    check.health,
    bench.bench,
    explain.explain,
    top.top,
    certs.certs,
    processes.fetch,
    processes.demo,
):
    app.command()(command)
app.add_typer(tenants.app, name="tenant")


def main() -> None:
    """Entry point of ``octavo``."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code; what goes wrong is one line on stderr."""
    try:
        result = app(arguments, prog_name="octavo", standalone_mode=False)
    except typer.TyperException as error:
        return _complain(error.format_message() + _where_help_is(error), UNUSABLE)
    except ConfigError as error:
        return _complain(str(error), UNUSABLE)
    except CommandError as error:
        return _complain(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return result if isinstance(result, int) else 0


@app.callback(invoke_without_command=True)
def octavo(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(envvar="OCTAVO_CONFIG", help="TOML file with a table of settings for each command."),
    ] = None,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", allow_from_autoenv=False)
    ] = False,
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True, allow_from_autoenv=False)] = False,
) -> None:
    """Octavo serves large language models: a gateway, a KV manager and an executor that speak gRPC.

    A setting comes from its flag, else from its environment variable, else from the TOML file, else the default holds.
    """
    if show_version:
        from importlib.metadata import version

        typer.echo(f"octavo {version('octavo')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
    if config is not None:
        context.default_map = read_toml(config, _settings_of_commands(context))
    if stop_with_stdin:
        from services.child_process import stop_with_stdin as follow

        follow()


def _settings_of_commands(context: typer.Context) -> dict[str, set[str]]:
    group: Any = context.command
    return {name: {parameter.name for parameter in command.params} for name, command in group.commands.items()}


def _complain(message: str, exit_code: int) -> int:
    print("octavo:", " ".join(message.split()), file=sys.stderr)
    return exit_code


def _where_help_is(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f" (see '{context.command_path} --help')" if context is not None else ""


if __name__ == "__main__":
    main()
