"""Where processes listen, and what is called after that."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from services.config.settings import MAX_PORT, ConfigError


def join_address(host: str, port: int) -> str:
    """``host:port``; an IPv6 host gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_address(name: str, address: str) -> None:
    """Refuses what is not ``host:port``.

    Raises:
        ConfigError: Naming the setting.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) <= MAX_PORT:
        raise ConfigError(f"{name}: not a host:port address: {address!r}")


def group_of(addresses: Sequence[str]) -> str:
    """What a group of executors is called after their addresses, the same on whatever machine.

    Loopback addresses are others on each machine: its name goes before.
    """
    group = ",".join(sorted(addresses))
    return f"{socket.gethostname()}/{group}" if any(map(_is_loopback, addresses)) else group


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def model_name_of(path: str) -> str:
    """Name of a model that was given none: its folder's name, or its file's without ``.gguf``."""
    return Path(os.path.abspath(path)).name.removesuffix(".gguf")
