"""Errors that name the protocol's fields in place of the core's."""

from __future__ import annotations

from dataclasses import replace

from services.rpc.status import RpcError

_NAMES = (
    ("sampling.guide.", "sampling_params."),
    ("sampling.guide", "sampling_params.constraint"),
    ("sampling.", "sampling_params."),
    ("prompt.tokens.token_ids", "tokenized.input_ids"),
    ("prompt.tokens", "tokenized"),
    ("prompt.text", "text"),
    ("prompt", "input"),
)
"""Beginnings of names, the longer ones first."""


def in_their_names(error: RpcError) -> RpcError:
    """The same error about the field as the protocol calls it."""
    for ours, theirs in _NAMES:
        if error.field.startswith(ours):
            field = theirs + error.field[len(ours) :]
            message = error.message.replace(error.field, field, 1)
            return replace(error, field=field, message=message)
    return error
