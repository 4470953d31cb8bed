"""Ports for processes under test."""

from __future__ import annotations

import random
import socket

# Below the range that Linux takes the ports of outgoing connections from, so that none of those gets one between its
# being chosen and its being listened on; and each once, so that no two processes get the same.
_CANDIDATES = iter(random.sample(range(20_000, 32_768), 12_768))


def free_port() -> int:
    """A port on loopback that nobody has, and nobody else is given."""
    for port in _CANDIDATES:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")
