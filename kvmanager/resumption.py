"""Requests that ran on a KV manager that is gone: they go on from the tokens that their gateways have.

They come back as what they would be here if their executor had been lost: their sequences exist, nothing is computed.
"""

from __future__ import annotations

from array import array

from kvmanager.endings import end_as_it_is, reason_to_finish
from kvmanager.request import Request, RequestState
from kvmanager.sequences import SequenceFactory
from kvmanager.step import Outputs


def resume(request: Request, sequences: SequenceFactory, outputs: Outputs) -> None:
    """Gives a request the sequences that it had, and ends those that have all their tokens.

    Its `max_length` is known. What is found of it in the prefix cache now is no hit of its first time, which nobody
    here knows about.
    """
    request.state = RequestState.PREEMPTED
    request.forked = request.restarted = True
    request.num_cached_tokens = 0
    for index, known in enumerate(request.spec.resumed):
        token_ids = array("i", request.spec.prompt_token_ids)
        token_ids.extend(known.token_ids)
        sequence = sequences.add(request, index, token_ids)
        if known.finish_reason is not None:
            sequence.finished = True
            sequence.finish_reason = known.finish_reason
        elif (reason := reason_to_finish(sequence)) is not None:
            end_as_it_is(sequence, reason, outputs)
