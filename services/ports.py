"""Addresses and ports of this machine: which are its own alone, which are free."""

import ipaddress
import socket

from services.config import ConfigError, join_address


def bind(host: str, port: int) -> socket.socket:
    """A socket that holds a port until it is closed; 0 takes a free one.

    Raises:
        ConfigError: The port is in use, or the host is none of this machine's.
    """
    held = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        held = socket.socket(family, kind, protocol)
        if port:
            # Connections of a server that ran here before do not count.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(address)
    except OSError as error:
        if held is not None:
            held.close()
        raise ConfigError(f"cannot listen on {join_address(host, port)}: {error.strerror}") from error
    return held


def listen(host: str, port: int, backlog: int = 128) -> socket.socket:
    """A socket that listens, for an event loop to accept from.

    Raises:
        ConfigError: As `bind`.
    """
    held = bind(host, port)
    held.setblocking(False)
    try:
        held.listen(backlog)
    except OSError as error:
        held.close()
        raise ConfigError(f"cannot listen on {join_address(host, port)}: {error.strerror}") from error
    return held


def check_free(host: str, port: int) -> None:
    """Refuses a port that another process has.

    Raises:
        ConfigError: As `bind`.
    """
    bind(host, port).close()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there. A host that nobody knows is not taken for it."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)
