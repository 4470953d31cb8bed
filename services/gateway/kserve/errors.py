"""What a request can be refused with, in the names that its client used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import grpc

from services.rpc.status import RpcError

_NAMES = {"model": "model_name", "prompt": "text_input", "prompt.text": "text_input"}
_SAMPLING = "sampling."


def invalid(field: str, message: str) -> RpcError:
    """INVALID_ARGUMENT, naming an input, a parameter or a field of the message."""
    return RpcError(grpc.StatusCode.INVALID_ARGUMENT, f"{field}: {message}", "INVALID_ARGUMENT", field)


def not_found(field: str, message: str) -> RpcError:
    """NOT_FOUND, naming the field."""
    return RpcError(grpc.StatusCode.NOT_FOUND, f"{field}: {message}", "MODEL_NOT_FOUND", field)


def in_names_of_client(error: RpcError, given_as: Mapping[str, str]) -> RpcError:
    """An error about a field of the core's request, about what the client gave it as.

    Args:
        given_as: sampling parameters by their names here, and what the client called them.
    """
    if not error.field:
        return error
    name = _NAMES.get(error.field, error.field)
    if name.startswith(_SAMPLING):
        parameter = name.removeprefix(_SAMPLING)
        known = next(
            (each for each in given_as if parameter == each or parameter.startswith((f"{each}.", f"{each}["))), ""
        )
        name = given_as[known] + parameter[len(known) :] if known else parameter
    message = error.message
    if message.startswith(f"{error.field}: "):
        message = f"{name}{message[len(error.field) :]}"
    return replace(error, field=name, message=message)
