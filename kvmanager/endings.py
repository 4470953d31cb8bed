"""How a request ends: what its gateway hears last."""

from __future__ import annotations

from kvmanager.counters import Counters
from kvmanager.errors import RequestError
from kvmanager.events import Event, EventKind, EventSink
from kvmanager.request import FinishReason, Request, Sequence
from kvmanager.step import Outputs, RequestEnd, SequenceUpdate, Usage


def reason_to_finish(sequence: Sequence) -> FinishReason | None:
    """Why a sequence's last token ends it; None where it goes on."""
    request = sequence.request
    if sequence.token_ids[-1] in request.spec.stop_token_ids and sequence.num_output > request.spec.min_tokens:
        return FinishReason.STOP
    if len(sequence.token_ids) >= request.max_length:
        return FinishReason.LENGTH
    return None


def send_best_samples(request: Request, outputs: Outputs) -> None:
    """The n sequences with the highest mean log probability of a token, best first."""
    means = {each: each.score / max(1, each.num_output) for each in request.sequences}
    best = sorted(request.sequences, key=lambda each: (-means[each], each.sample_index))[: request.spec.n]
    for index, each in enumerate(best):
        tokens = each.token_ids[each.prompt_length :].tolist()
        update = SequenceUpdate(request.spec.handle, index, 0, tokens, [], each.finish_reason, means[each])
        outputs.updates.append(update)


def send_best_beams(request: Request, outputs: Outputs) -> None:
    """The n best beams of a search that is over, best first; empty ones where the vocabulary has no more."""
    assert request.beams is not None
    best = request.beams.best(request.spec.n)
    for index in range(request.spec.n):
        if index < len(best):
            tokens, reason, score = best[index].token_ids, best[index].finish_reason, best[index].score
        else:
            tokens, reason, score = [], FinishReason.LENGTH, float("-inf")
        outputs.updates.append(SequenceUpdate(request.spec.handle, index, 0, tokens, [], reason, score))


def shorten(request: Request, room: int, outputs: Outputs) -> None:
    """Ends sequences of a request that no executor holds, where they are as long as any takes now, or longer."""
    if room >= request.max_length:
        return
    request.max_length = room
    if request.beams is not None:
        beams = [each.token_ids[each.prompt_length :] for each in request.sequences]
        request.beams.shrink(room - len(request.spec.prompt_token_ids), beams)
        if request.beams.done:
            send_best_beams(request, outputs)
            for beam in request.sequences:
                beam.finished = True
        return
    for sequence in request.unfinished():
        if len(sequence.token_ids) >= room:
            end_as_it_is(sequence, FinishReason.LENGTH, outputs)
    if request.ranked and not request.unfinished():
        send_best_samples(request, outputs)


def end_as_it_is(sequence: Sequence, reason: FinishReason, outputs: Outputs) -> None:
    """Ends a sequence that no executor holds, with a word to its gateway but no token."""
    sequence.finished = True
    sequence.finish_reason = reason
    if sequence.request.streamed:
        handle, index, position = sequence.handle, sequence.sample_index, sequence.num_output
        outputs.updates.append(SequenceUpdate(handle, index, position, [], [], reason))


def end_request(
    request: Request,
    outputs: Outputs,
    now: float,
    counters: Counters,
    emit: EventSink,
    error: RequestError | None = None,
    detail: str = "",
) -> None:
    """Says how a request ended that is in no queue and holds no block any more.

    Args:
        detail: how, where it ended without a word.
    """
    spec = request.spec
    counters.note_state(request, None, now)
    if request.beams is not None:
        completion = sum(len(each.token_ids) for each in request.beams.best(spec.n)) if request.beams.done else 0
    else:
        completion = sum(each.num_output for each in request.sequences)
    if error is None:
        usage = Usage(len(spec.prompt_token_ids), completion, request.num_cached_tokens or 0, request.prefix_match_end)
        outputs.ends.append(RequestEnd(spec.handle, usage=usage, times=request.times))
    else:
        outputs.ends.append(RequestEnd(spec.handle, error=error, times=request.times))
    counters.note_end(request, completion)
    how = detail or (type(error).__name__ if error else "done")
    cause = str(error) if error else ""
    emit(Event(EventKind.FINISHED, now, spec.handle, value=completion, detail=how, cause=cause))
