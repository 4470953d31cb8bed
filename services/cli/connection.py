"""What a command talks through: a client of the public service, or a channel to any process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from services.cli.errors import talking_to
from services.cli.options import ClientOptions, ServerOptions
from services.config import ConfigError, read_api_key, read_pem

if TYPE_CHECKING:
    import grpc

    from octavo.client import Client


@contextmanager
def connected(server: ClientOptions) -> "Iterator[Client]":
    """A client whose failures are the command's.

    A stream that breaks goes on when a server is back: a person sees a pause. Where no server is there at the start,
    the command ends at once.

    Raises:
        CommandError: A server refused, or none can be reached.
        ConfigError: The API key cannot be one.
    """
    with talking_to(server.address), open_client(server) as client:
        yield client


def open_client(server: ClientOptions) -> "Client":
    """A client of these servers.

    Raises:
        ConfigError: The API key cannot be one, or there are no authorities.
    """
    from octavo.client import Client, RetryPolicy

    api_key = read_api_key(server.api_key_file)
    try:
        return Client(
            server.addresses(),
            api_key=api_key,
            tls=server.tls,
            tls_ca=server.tls_ca,
            retry=RetryPolicy(start_patience=0.0),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def open_channel_to(server: ServerOptions) -> "grpc.Channel":
    """A channel to one process. Asked beside it, mostly: never through a proxy that the environment names.

    Raises:
        ConfigError: A file cannot be read.
    """
    import grpc

    options = [("grpc.enable_http_proxy", 0)]
    if not (server.tls or server.tls_ca or server.tls_cert):
        return grpc.insecure_channel(server.address, options=options)
    authorities, key, certificate = (
        read_pem(name, path)
        for name, path in (("tls_ca", server.tls_ca), ("tls_key", server.tls_key), ("tls_cert", server.tls_cert))
    )
    credentials = grpc.ssl_channel_credentials(authorities, key, certificate)
    return grpc.secure_channel(server.address, credentials, options=options)
