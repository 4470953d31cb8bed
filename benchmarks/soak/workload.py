"""Which requests a soak sends: drawn from a seed, in fixed proportions."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

from benchmarks.soak.invalid import invalid_requests
from benchmarks.soak.prompts import SCOPES, Prompts, skewed
from benchmarks.soak.sampling import Probe, SamplingMix
from octavo.client import generate_request
from octavo.messages import as_scope
from octavo.v1 import inference_pb2

PROBE_TOKENS = 32
NUM_PROBES = 4
# Longer than a soak may take: these deadlines are never met.
LONG_SECONDS = 3600.0
# From "before anything could be answered" to "in the middle of a long answer".
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.05, 20.0
# A client that goes after so many seconds.
_LATEST_CANCEL_SECONDS = 3.0


class Kind(Enum):
    """How a request is meant to end."""

    COMPLETE = "complete"
    ABORT = "abort"  # the client cancels the call
    LEAVE = "leave"  # the client closes its connection
    TIMEOUT = "timeout"  # the request's own `timeout` is short
    DEADLINE = "deadline"  # the call's gRPC deadline is short
    INVALID = "invalid"  # the request is refused


_SHARES = {Kind.ABORT: 0.12, Kind.LEAVE: 0.04, Kind.TIMEOUT: 0.06, Kind.DEADLINE: 0.05, Kind.INVALID: 0.05}


@dataclass(frozen=True)
class Planned:
    """One request and what the client does with it.

    Attributes:
        number: Its place in the workload.
        cancel_after: ABORT and LEAVE: responses after which the client goes.
        cancel_seconds: ABORT: instead, how long after the call's begin it cancels.
        deadline: gRPC deadline of the call, in seconds.
        status: INVALID: the name of the status code to expect.
        field: INVALID: which field the refusal has to name.
    """

    number: int
    kind: Kind
    request: inference_pb2.GenerateRequest
    cancel_after: int | None = None
    cancel_seconds: float | None = None
    deadline: float | None = None
    status: str = "OK"
    field: str = ""

    @property
    def timeout(self) -> float | None:
        """The request's own limit in seconds."""
        return self.request.timeout.ToNanoseconds() / 1e9 if self.request.HasField("timeout") else None


def probe_requests(seed: int, vocab_size: int) -> list[inference_pb2.GenerateRequest]:
    """The requests whose answers give stop strings and stop tokens that really occur."""
    rng = Random(f"probes {seed}")
    prompts = Prompts(rng, vocab_size)
    sampling = {"temperature": 0.0, "max_tokens": PROBE_TOKENS, "ignore_eos": True}
    return [generate_request(prompts.chat(rng.randint(6, 20)), sampling=sampling) for _ in range(NUM_PROBES)]


def lone_beam_search(seed: int, vocab_size: int) -> inference_pb2.GenerateRequest:
    """A search to be served alone, so that what it copies can be counted."""
    rng = Random(f"lone beams {seed}")
    prompts = Prompts(rng, vocab_size)
    sampling = {"beam_width": 4, "n": 4, "max_tokens": 32, "ignore_eos": True}
    return generate_request(prompts.chat(rng.randint(6, 20)), sampling=sampling)


def draw(seed: int, num_requests: int, model: inference_pb2.Model, probes: Sequence[Probe]) -> list[Planned]:
    """All requests of a soak. The same arguments give the same ones."""
    rng = Random(f"workload {seed}")
    kinds = [kind for kind, share in _SHARES.items() for _ in range(max(1, round(share * num_requests)))]
    kinds = (kinds + [Kind.COMPLETE] * num_requests)[:num_requests]
    rng.shuffle(kinds)
    workload = _Workload(rng, model, probes)
    return [workload.plan(number, kind) for number, kind in enumerate(kinds)]


class _Workload:
    def __init__(self, rng: Random, model: inference_pb2.Model, probes: Sequence[Probe]) -> None:
        self._rng = rng
        self._prompts = Prompts(rng, model.vocab_size)
        self._sampling = SamplingMix(rng, probes)
        self._invalid = invalid_requests(self._prompts, model)

    def plan(self, number: int, kind: Kind) -> Planned:
        rng = self._rng
        if kind is Kind.INVALID:
            request, status, field = rng.choice(self._invalid)
            return Planned(number, kind, request, status=status, field=field)
        request = self._request()
        if rng.random() < 0.5:
            request.request_id = f"soak-{number}"
        if kind in (Kind.ABORT, Kind.LEAVE):
            # At least this long, or most would have ended before.
            request.sampling.max_tokens = max(request.sampling.max_tokens, 24)
            if kind is Kind.ABORT and rng.random() < 0.5:
                return Planned(number, kind, request, cancel_seconds=rng.uniform(0.0, _LATEST_CANCEL_SECONDS))
            return Planned(number, kind, request, cancel_after=skewed(rng, 1, 20))
        seconds = _SHORTEST_SECONDS * (_LONGEST_SECONDS / _SHORTEST_SECONDS) ** rng.random()
        if kind is Kind.TIMEOUT:
            request.timeout.FromNanoseconds(int(seconds * 1e9))
        elif kind is Kind.DEADLINE:
            return Planned(number, kind, request, deadline=seconds)
        elif rng.random() < 0.2:
            if rng.random() < 0.5:
                return Planned(number, kind, request, deadline=LONG_SECONDS)
            request.timeout.FromNanoseconds(int(LONG_SECONDS * 1e9))
        return Planned(number, kind, request)

    def _request(self) -> inference_pb2.GenerateRequest:
        rng = self._rng
        request = self._sampling.stopped_like_a_probe() if rng.random() < 0.12 else None
        if request is None:
            prompt = self._prompts.segmented() if rng.random() < 0.15 else self._prompts.draw()
            request = generate_request(prompt)
            self._sampling.choose(request.sampling)
        if rng.random() < 0.2 and (scope := as_scope(rng.choice(SCOPES))) is not None:
            request.cache_scope.CopyFrom(scope)
        if rng.random() < 0.3:
            request.priority = rng.choice((-100, -5, 1, 20, 100))
        request.report_progress = rng.random() < 0.3
        return request
