"""One setting: its default, its help, its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal, get_args, get_origin

from executor.settings import MAX_BATCHED_TOKENS, MAX_SEQUENCES

MAX_PORT = 65535


class ConfigError(Exception):
    """A process cannot start as it was told to: the message is one line for the person who told it."""


def setting(
    default: Any = ...,
    help: str = "",
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    envvar: str | list[str] | None = None,
) -> Any:
    """One field of a configuration.

    Args:
        default: ``...`` makes the field required.
        help: One line for ``--help``.
        minimum: Least allowed value.
        maximum: Greatest allowed value.
        envvar: The environment variable that gives the value, or several, of which the first that is set counts.
    """
    metadata = {"help": help, "minimum": minimum, "maximum": maximum, "envvar": envvar}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)


def check_value(name: str, kind: Any, limits: Mapping[str, Any], value: Any) -> None:
    """Refuses a value that is none of the kind, or beyond its limits.

    Raises:
        ConfigError: Naming the setting.
    """
    if get_origin(kind) is Literal and value not in get_args(kind):
        raise ConfigError(f"{name}: must be one of {', '.join(get_args(kind))}, not {value!r}")
    if value is None:
        return
    minimum, maximum = limits["minimum"], limits["maximum"]
    if minimum is not None and not value >= minimum:
        raise ConfigError(f"{name}: must be at least {minimum}, not {value}")
    if maximum is not None and not value <= maximum:
        raise ConfigError(f"{name}: must be at most {maximum}, not {value}")
    if kind is str and not value and name not in ("model_name", "group"):
        raise ConfigError(f"{name}: must not be empty")


def check_together(config: object, *names: str) -> None:
    """Refuses some of these settings without the others.

    Raises:
        ConfigError: Naming one that is missing.
    """
    given = [name for name in names if getattr(config, name) is not None]
    missing = [name for name in names if name not in given]
    if given and missing:
        raise ConfigError(f"{missing[0]}: is missing; {', '.join(names)} are given together")


# Settings of several processes


def max_batched_tokens() -> Any:
    """Of the KV manager and the executor."""
    return setting(
        MAX_BATCHED_TOKENS,
        "Token budget of one step, decodes and prefill together. The KV manager's and the executor's, which keeps"
        " memory for it on a GPU; the smaller one counts.",
        minimum=1,
    )


def max_sequences() -> Any:
    """Likewise."""
    return setting(
        MAX_SEQUENCES, "Most sequences that run at once; of the KV manager and the executor likewise.", minimum=1
    )


def tenants_file() -> Any:
    """Of the gateway and the KV manager."""
    return setting(
        None,
        "File with tenants and their hashed API keys, as 'octavo tenant --tenants-file' writes it, in place of those in"
        " the state store. The gateway's and the KV manager's.",
    )
