"""How a client reaches a server: plain or over TLS, with an API key, and aware within seconds that nobody is there."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import grpc
import grpc.aio

FilePath = str | PathLike[str]

_OPTIONS = [
    # How long one attempt to connect may take (gRPC's own limit is 20 s), and how soon the next one follows.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A server that does not answer this for so long is gone, though the connection seems open. Its event loop may be
    # busy: gRPC's own threads answer.
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.ping_timeout_ms", 5000),
    # While a call runs, however long nothing comes.
    ("grpc.http2.max_pings_without_data", 0),
]


def open_channel(address: str, *, tls: bool = False, tls_ca: FilePath | None = None) -> grpc.Channel:
    """A channel to a server, which connects at the first call and again after each break.

    Args:
        address: ``host:port``.
        tls: Over TLS. The server's certificate has to hold the host's name or address, and to be signed by an authority
            that gRPC knows, or by one in `tls_ca`.
        tls_ca: PEM file with the authorities to trust instead; implies `tls`.

    Raises:
        ValueError: `tls_ca` can't be read or holds no certificate.
    """
    credentials = _credentials(tls, tls_ca)
    if credentials is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    return grpc.secure_channel(address, credentials, options=_OPTIONS)


def open_aio_channel(address: str, *, tls: bool = False, tls_ca: FilePath | None = None) -> grpc.aio.Channel:
    """`open_channel` for asyncio."""
    credentials = _credentials(tls, tls_ca)
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)


def call_metadata(metadata: Mapping[str, str] | None = None, api_key: str | None = None) -> tuple[tuple[str, str], ...]:
    """What is sent with each call.

    Args:
        metadata: Anything, by lower-case name.
        api_key: Who is calling: sent as a bearer token.

    Raises:
        ValueError: The key can't be one. The message does not show it.
    """
    pairs = tuple((metadata or {}).items())
    if api_key is None:
        return pairs
    if not api_key or not all("!" <= character <= "~" for character in api_key):
        raise ValueError("api_key: must be visible ASCII characters without spaces")
    return (*pairs, ("authorization", f"Bearer {api_key}"))


def _credentials(tls: bool, tls_ca: FilePath | None) -> grpc.ChannelCredentials | None:
    if tls_ca is None:
        return grpc.ssl_channel_credentials() if tls else None
    try:
        authorities = Path(tls_ca).read_bytes()
    except OSError as error:
        raise ValueError(f"tls_ca: can't read {tls_ca}: {error.strerror}") from error
    if b"-----BEGIN CERTIFICATE-----" not in authorities:
        raise ValueError(f"tls_ca: {tls_ca} holds no PEM certificate")
    return grpc.ssl_channel_credentials(authorities)
