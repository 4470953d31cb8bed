"""What can be said against a request before anybody looks at memory."""

from __future__ import annotations

from kvmanager.capacity import Capacity
from kvmanager.errors import InvalidRequest
from kvmanager.spec import RequestSpec


def check_spec(spec: RequestSpec, capacity: Capacity, max_sequences: int) -> None:
    """Whether a request makes sense.

    Args:
        capacity: the largest executor's.
        max_sequences: most sequences that any request may have.

    Raises:
        InvalidRequest: naming the field at fault.
    """
    if spec.n < 1:
        raise InvalidRequest("sampling.n", f"n is {spec.n}; it must be at least 1")
    check_num_sequences(spec, max_sequences)
    if spec.beam is not None and not spec.n <= spec.beam.width:
        raise InvalidRequest("sampling.n", f"n is {spec.n}; there are {spec.beam.width} beams")
    length = len(spec.prompt_token_ids)
    if sum(num_tokens for num_tokens, _ in spec.spans) > length:
        raise InvalidRequest("prompt", "the scopes cover more tokens than there are")
    if spec.pin is not None and length < capacity.block_size:
        raise InvalidRequest("prompt", f"prompt has {length} tokens; a block to keep has {capacity.block_size}")
    if spec.resumed:
        _check_resumption(spec, capacity)


def check_num_sequences(spec: RequestSpec, most: int) -> None:
    """Raises InvalidRequest where a request has more sequences at once than these."""
    if spec.num_sequences > most:
        field = "beam_width" if spec.beam else "best_of" if spec.best_of > spec.n else "n"
        raise InvalidRequest(f"sampling.{field}", f"{field} is {spec.num_sequences}; it must be from 1 to {most}")


def _check_resumption(spec: RequestSpec, capacity: Capacity) -> None:
    """Tokens that were sent can't be taken back, so only what is sent as it comes goes on after them."""
    if spec.beam is not None or spec.best_of > spec.n or spec.pin is not None:
        raise InvalidRequest(
            "resumption", "beam search, best_of and pins send nothing before their end: they start again"
        )
    if len(spec.resumed) != spec.n:
        raise InvalidRequest("resumption", f"resumption has {len(spec.resumed)} sequences; n is {spec.n}")
    most = capacity.max_model_len - len(spec.prompt_token_ids)
    if spec.max_tokens:
        most = min(most, spec.max_tokens)
    for index, sequence in enumerate(spec.resumed):
        num_tokens = len(sequence.token_ids)
        if not 0 < num_tokens <= most:
            raise InvalidRequest(
                "resumption", f"resumption: sequence {index} has {num_tokens} tokens; it must be from 1 to {most}"
            )
