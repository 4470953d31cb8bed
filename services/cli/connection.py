"""The client that a command talks through."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from services.cli.errors import talking_to
from services.cli.options import ClientOptions
from services.config import ConfigError, read_api_key

if TYPE_CHECKING:
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
        ConfigError: The API key cannot be one.
    """
    from octavo.client import Client, RetryPolicy

    api_key = read_api_key(server.api_key_file)
    try:
        return Client(server.addresses(), api_key=api_key, retry=RetryPolicy(start_patience=0.0))
    except ValueError as error:
        raise ConfigError(str(error)) from error
