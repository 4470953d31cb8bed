"""How one service reaches another: the only place where connections inward are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import grpc

from services.config import ServiceConfig
from services.rpc.roles import Role, role_name
from services.rpc.tls import Identity

Connect: TypeAlias = Callable[[str], grpc.aio.Channel]
"""Makes a channel to an address, ``host:port``. It is to be made anew for each connection: it keeps its certificate."""

MESSAGE_BYTES = 64 * 1024 * 1024
"""Longest message between the services: a step's new sequences carry whole prompts."""

PING_SECONDS = 1.0
"""So often both ends of a connection between services look whether the other one is there."""

PING_TIMEOUT_SECONDS = 2.0
"""One that does not answer for so long counts as gone, though the connection is open: its machine, or the network, is.

It need not be busy for that: gRPC's own threads answer, whatever the event loop does meanwhile.
"""

MESSAGE_LENGTHS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
]

KEEPALIVE = [
    ("grpc.keepalive_time_ms", int(PING_SECONDS * 1000)),
    ("grpc.keepalive_timeout_ms", int(PING_TIMEOUT_SECONDS * 1000)),
    # Holds where the one above does not: a ping that is never answered.
    ("grpc.http2.ping_timeout_ms", int(PING_TIMEOUT_SECONDS * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

_RECONNECTING = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # One attempt may take so long; gRPC's own limit is 20 s.
    ("grpc.min_reconnect_backoff_ms", 2000),
    # A new connection is tried at once, whatever an earlier one to the same address is waiting for.
    ("grpc.use_local_subchannel_pool", 1),
    # Never through a proxy that the environment names.
    ("grpc.enable_http_proxy", 0),
]


def connector(config: ServiceConfig, role: Role) -> Connect:
    """How a process reaches services of a role: over TLS where it has a certificate, which it shows them.

    Raises:
        ConfigError: the certificate can't be used.
    """
    identity = None if config.tls is None else Identity(config.tls)
    return lambda address: inner_channel(address, role, identity)


def inner_channel(address: str, role: Role, identity: Identity | None = None) -> grpc.aio.Channel:
    """A connection from one service to the next, which is tried again soon after it breaks.

    Args:
        role: what the other end's certificate has to name, whatever its address.
        identity: who is calling; None: in plain text.
    """
    options = [*MESSAGE_LENGTHS, *KEEPALIVE, *_RECONNECTING]
    if identity is None:
        return grpc.aio.insecure_channel(address, options=options)
    options.append(("grpc.ssl_target_name_override", role_name(role)))  # type: ignore[arg-type]
    return grpc.aio.secure_channel(address, identity.channel_credentials(), options=options)
