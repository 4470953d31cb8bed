"""Which requests a soak sends: drawn from a seed, in fixed proportions."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any

from benchmarks.soak.prompts import Prompts, skewed
from octavo.client import generate_request
from octavo.v1 import inference_pb2

MAX_TOKENS = 96
PROBE_TOKENS = 48
NUM_PROBES = 6
# Longer than a soak may take: these deadlines are never met.
LONG_SECONDS = 3600.0
# From "before anything could be answered" to "in the middle of a long answer".
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.05, 20.0
# Frequent in English text, so that some answers run into them.
_COMMON_STOPS = (" the", "\n\n", ". ", "and", " I", "?", "er ", "\n- ")


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


@dataclass(frozen=True)
class Probe:
    """A greedy request that was answered before: its text and tokens will come again."""

    request: inference_pb2.GenerateRequest
    text: str
    token_ids: Sequence[int]


def probe_requests(seed: int, vocab_size: int) -> list[inference_pb2.GenerateRequest]:
    """The requests whose answers give stop strings and stop tokens that really occur."""
    rng = Random(f"probes {seed}")
    prompts = Prompts(rng, vocab_size)
    sampling = {"temperature": 0.0, "max_tokens": PROBE_TOKENS, "ignore_eos": True}
    return [generate_request(prompts.chat(rng.randint(6, 20)), sampling=sampling) for _ in range(NUM_PROBES)]


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
        self._model = model
        self._probes = probes
        self._prompts = Prompts(rng, model.vocab_size)
        self._invalid = _invalid_requests(self._prompts, model)

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
            if kind is Kind.ABORT and rng.random() < 0.4:
                return Planned(number, kind, request, cancel_seconds=rng.uniform(0.0, 0.5))
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
        if self._probes and self._rng.random() < 0.15:
            return self._stopped_like_a_probe()
        request = generate_request(self._prompts.draw())
        self._choose_lengths(request)
        self._choose_sampling(request)
        self._choose_stops(request)
        return request

    def _stopped_like_a_probe(self) -> inference_pb2.GenerateRequest:
        """A probe's prompt again, with a stop string or a stop token from the middle of its answer."""
        rng = self._rng
        probe = rng.choice(self._probes)
        request = generate_request(
            probe.request.prompt, sampling={"temperature": 0.0, "max_tokens": MAX_TOKENS, "n": self._num_sequences()}
        )
        if rng.random() < 0.7:
            length = rng.randint(1, 12)
            start = rng.randrange(max(1, len(probe.text) - length))
            request.sampling.stop.append(probe.text[start : start + length])
            if rng.random() < 0.5:
                request.sampling.stop.append("never in any answer ☃")
        else:
            request.sampling.stop_token_ids.append(rng.choice(probe.token_ids))
        self._choose_logprobs(request)
        return request

    def _choose_lengths(self, request: inference_pb2.GenerateRequest) -> None:
        rng = self._rng
        request.sampling.n = self._num_sequences()
        request.sampling.max_tokens = skewed(rng, 1, MAX_TOKENS)
        if rng.random() < 0.15:
            request.sampling.ignore_eos = True
        if rng.random() < 0.1:
            request.sampling.min_tokens = rng.randint(1, request.sampling.max_tokens)
        if rng.random() < 0.1:
            request.sampling.skip_special_tokens = False

    def _choose_sampling(self, request: inference_pb2.GenerateRequest) -> None:
        rng = self._rng
        sampling = request.sampling
        self._choose_logprobs(request)
        if rng.random() < 0.5:
            sampling.temperature = 0.0
            return
        sampling.temperature = rng.choice((0.3, 0.7, 1.0, 1.5))
        if rng.random() < 0.4:
            sampling.top_k = rng.choice((1, 5, 20, 50))
        if rng.random() < 0.4:
            sampling.top_p = rng.choice((0.5, 0.9, 0.95))
        if rng.random() < 0.2:
            sampling.min_p = rng.choice((0.02, 0.1))
        if rng.random() < 0.9:
            sampling.seed = rng.getrandbits(64)

    def _choose_stops(self, request: inference_pb2.GenerateRequest) -> None:
        rng = self._rng
        # How min_tokens and stop strings meet inside a token is the gateway's own tests' business.
        if rng.random() < 0.2 and not request.sampling.HasField("min_tokens"):
            request.sampling.stop.extend(rng.sample(_COMMON_STOPS, rng.randint(1, 3)))
        if rng.random() < 0.1:
            common = [token for probe in self._probes for token in probe.token_ids]
            request.sampling.stop_token_ids.extend(rng.sample(common, min(2, len(common))))

    def _choose_logprobs(self, request: inference_pb2.GenerateRequest) -> None:
        if self._rng.random() < 0.25:
            request.sampling.logprobs = self._rng.choice((0, 1, 5, 20))

    def _num_sequences(self) -> int:
        return self._rng.choices((1, 2, 3, 4), (6, 2, 1, 1))[0]


def _invalid_requests(
    prompts: Prompts, model: inference_pb2.Model
) -> list[tuple[inference_pb2.GenerateRequest, str, str]]:
    """Requests that are refused, with the status and the field of the refusal."""
    text = prompts.text(8)
    wrong_sampling: dict[str, dict[str, Any]] = {
        "temperature": {"temperature": -0.5},
        "top_p": {"top_p": 0.0},
        "top_k": {"top_k": -1},
        "min_p": {"min_p": 1.5},
        "n": {"n": 65},
        "max_tokens": {"max_tokens": 0},
        "min_tokens": {"max_tokens": 4, "min_tokens": 5},
        "logprobs": {"logprobs": 21},
        "stop[1]": {"stop": ["fine", ""]},
        "stop_token_ids[0]": {"stop_token_ids": [model.vocab_size]},
    }
    wrong = [(generate_request(text, sampling=values), f"sampling.{name}") for name, values in wrong_sampling.items()]
    longest = model.max_model_len
    wrong += [
        (generate_request(text, sampling={"n": 0}), "sampling.n"),
        (generate_request(text, sampling={"max_tokens": longest}), "sampling.max_tokens"),
        # Each of them fits; 64 such answers at once do not.
        (generate_request(text, sampling={"n": 64, "max_tokens": longest - 200}), "sampling.max_tokens"),
        (generate_request(""), "prompt.text"),
        (inference_pb2.GenerateRequest(), "prompt"),
        (generate_request([1, model.vocab_size]), "prompt.tokens.token_ids[1]"),
        (generate_request([1000] * longest), "prompt.tokens"),
    ]
    refusals = [(request, "INVALID_ARGUMENT", field) for request, field in wrong]
    return [*refusals, (generate_request(text, model="no-such-model"), "NOT_FOUND", "model")]
