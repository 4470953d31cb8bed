"""What is read from files and the environment beside the settings themselves."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from services.config.settings import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MIN_OPERATOR_KEY = 16
"""Characters. Nobody counts how often a wrong one is tried."""


def cache_folder() -> Path:
    """Where fetched models and converted weights are kept: ``$OCTAVO_CACHE``, or ``~/.cache/octavo``."""
    return Path(os.environ.get("OCTAVO_CACHE") or Path.home() / ".cache" / "octavo")


def read_api_key(file: str | None) -> str | None:
    """The key that a client calls with: from a file, else from ``$OCTAVO_API_KEY``; never from the command line.

    Raises:
        ConfigError: The file cannot be read.
    """
    if file is None:
        return os.environ.get("OCTAVO_API_KEY") or None
    try:
        return Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_key_file: cannot read {file}: {getattr(error, 'strerror', None) or error}") from error


def read_operator_key(file: str | None) -> str | None:
    """The key of whoever operates a gateway: from a file, else from ``$OCTAVO_OPERATOR_KEY``.

    Raises:
        ConfigError: The file can't be read, or there is no key in it that a call could bring. What there is, is not
            said.
    """
    source = "OCTAVO_OPERATOR_KEY" if file is None else f"operator_key_file: {file}"
    if file is None:
        key = os.environ.get("OCTAVO_OPERATOR_KEY", "").strip()
        if not key:
            return None
    else:
        try:
            key = Path(file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source}: {getattr(error, 'strerror', None) or 'not text'}") from None
    if len(key) < MIN_OPERATOR_KEY or not all("!" <= character <= "~" for character in key):
        raise ConfigError(f"{source}: the key must be {MIN_OPERATOR_KEY} or more ASCII characters without spaces")
    return key


def read_text(name: str, path: str) -> str:
    """The text in the file that an option names.

    Raises:
        ConfigError: The file cannot be read, or holds no text.
    """
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def read_pem(name: str, path: str | None) -> bytes | None:
    """What is in the file that a setting names, if it names one.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}: cannot read {path}: {error.strerror}") from error


def check_no_certificates(tables: Mapping[str, Any]) -> None:
    """Refuses certificates that a stack's processes would find by themselves, unknown to who starts them.

    Args:
        tables: Of the TOML file.

    Raises:
        ConfigError: There are some.
    """
    for command in ("gateway", "kvmanager", "executor"):
        for name in ("tls_cert", "public_tls_cert"):
            variable = f"OCTAVO_{command}_{name}".upper()
            if os.environ.get(variable) or name in tables.get(command, {}):
                raise ConfigError(
                    f"{variable}, or {name} in [{command}]: octavo serve takes --tls-dir and --public-tls-cert"
                )


def read_toml(path: Path, commands: Mapping[str, Collection[str]]) -> dict[str, dict[str, Any]]:
    """Settings from a TOML file with one table for each command, such as ``[executor]``.

    Args:
        path: The file.
        commands: Every command with the settings it knows.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or has an unknown table or setting.
    """
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name!r} stands outside a table such as [executor]")
        if name not in commands:
            raise ConfigError(f"{path}: unknown table [{name}]; there are {', '.join(sorted(commands))}")
        for key in table:
            if key not in commands[name]:
                raise ConfigError(
                    f"{path}: unknown setting {key!r} in [{name}]; there are {', '.join(sorted(commands[name]))}"
                )
    return tables
