"""The mix of decoding methods and sampling parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.soak.prompts import skewed
from octavo.client import generate_request
from octavo.v1 import common_pb2, inference_pb2

MAX_TOKENS = 64
# Requests of many sequences are shorter, so that each fits into a small pool beside some pins.
MAX_BEAM_TOKENS = 32
MAX_BEST_OF_TOKENS = 32
WIDEST = 6
# Frequent in English text, so that some answers run into them.
_COMMON_STOPS = (" the", "\n\n", ". ", "and", " I", "?", "er ", "\n- ")


@dataclass(frozen=True)
class Probe:
    """A greedy request that was answered before: its text and tokens will come again."""

    request: inference_pb2.GenerateRequest
    text: str
    token_ids: Sequence[int]


class SamplingMix:
    """Draws decoding methods and their parameters.

    Args:
        rng: Every choice comes from it.
        probes: Where stop strings and tokens come from.
    """

    def __init__(self, rng: Random, probes: Sequence[Probe]) -> None:
        self._rng = rng
        self._probes = probes
        self._common_tokens = [token for probe in probes for token in probe.token_ids]

    def choose(self, sampling: common_pb2.SamplingParams) -> None:
        """Fills in a request's sampling parameters: beam search, best of several, samples, or greedy."""
        kind = self._rng.random()
        if kind < 0.16:
            self._choose_beams(sampling)
        elif kind < 0.28:
            self._choose_best_of(sampling)
        else:
            self._choose_samples(sampling)
        self._choose_lengths(sampling)
        self._choose_penalties(sampling)

    def stopped_like_a_probe(self) -> inference_pb2.GenerateRequest | None:
        """A probe's prompt again, with a stop string or a stop token from the middle of its answer."""
        if not self._probes:
            return None
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
        self._choose_logprobs(request.sampling)
        return request

    def _choose_beams(self, sampling: common_pb2.SamplingParams) -> None:
        rng = self._rng
        sampling.beam_width = rng.randint(2, WIDEST)
        sampling.n = rng.randint(1, sampling.beam_width)
        sampling.max_tokens = skewed(rng, 1, MAX_BEAM_TOKENS)
        if rng.random() < 0.8:
            sampling.length_penalty = rng.choice((0.5, 1.0, 2.0))
        if rng.random() < 0.8:
            sampling.early_stopping = rng.choice(
                (
                    common_pb2.EARLY_STOPPING_HEURISTIC,
                    common_pb2.EARLY_STOPPING_FIRST,
                    common_pb2.EARLY_STOPPING_NEVER,
                )
            )
        if rng.random() < 0.2:
            sampling.temperature = 0.0
        # Some beams end before the others.
        self._choose_stop_tokens(sampling, 0.5)

    def _choose_best_of(self, sampling: common_pb2.SamplingParams) -> None:
        rng = self._rng
        sampling.n = rng.randint(1, 3)
        sampling.best_of = rng.randint(sampling.n + 1, WIDEST)
        sampling.max_tokens = skewed(rng, 1, MAX_BEST_OF_TOKENS)
        self._choose_distribution(sampling, greedy=0.1)
        self._choose_logprobs(sampling)
        self._choose_stops(sampling, strings=0.4)

    def _choose_samples(self, sampling: common_pb2.SamplingParams) -> None:
        sampling.n = self._num_sequences()
        sampling.max_tokens = skewed(self._rng, 1, MAX_TOKENS)
        self._choose_distribution(sampling, greedy=0.5)
        self._choose_logprobs(sampling)
        self._choose_stops(sampling, strings=0.2)

    def _choose_lengths(self, sampling: common_pb2.SamplingParams) -> None:
        rng = self._rng
        if rng.random() < 0.15:
            sampling.ignore_eos = True
        # How min_tokens and stop strings meet inside a token is the gateway's own tests' business.
        if rng.random() < 0.12 and not sampling.stop:
            sampling.min_tokens = rng.randint(1, sampling.max_tokens)
        if rng.random() < 0.1:
            sampling.skip_special_tokens = False

    def _choose_distribution(self, sampling: common_pb2.SamplingParams, greedy: float) -> None:
        rng = self._rng
        if rng.random() < greedy:
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

    def _choose_penalties(self, sampling: common_pb2.SamplingParams) -> None:
        rng = self._rng
        if rng.random() < 0.65:
            return
        if rng.random() < 0.4:
            sampling.presence_penalty = rng.choice((-0.5, 0.4, 1.5))
        if rng.random() < 0.4:
            sampling.frequency_penalty = rng.choice((-0.2, 0.3, 1.0))
        if rng.random() < 0.5:
            sampling.repetition_penalty = rng.choice((0.9, 1.1, 1.3))
        if rng.random() < 0.4 and self._common_tokens:
            for token in rng.sample(self._common_tokens, min(3, len(self._common_tokens))):
                sampling.logit_bias[token] = rng.choice((-100.0, -2.0, 1.5, 8.0))

    def _choose_stops(self, sampling: common_pb2.SamplingParams, strings: float) -> None:
        if self._rng.random() < strings:
            sampling.stop.extend(self._rng.sample(_COMMON_STOPS, self._rng.randint(1, 3)))
        self._choose_stop_tokens(sampling, 0.1)

    def _choose_stop_tokens(self, sampling: common_pb2.SamplingParams, share: float) -> None:
        if self._rng.random() < share:
            sampling.stop_token_ids.extend(self._rng.sample(self._common_tokens, min(2, len(self._common_tokens))))

    def _choose_logprobs(self, sampling: common_pb2.SamplingParams) -> None:
        if self._rng.random() < 0.25:
            sampling.logprobs = self._rng.choice((0, 1, 5, 20))

    def _num_sequences(self) -> int:
        return self._rng.choices((1, 2, 3, 4), (6, 2, 1, 1))[0]


def is_ranked(sampling: common_pb2.SamplingParams) -> bool:
    """Whether the answer's sequences are ranked, and come whole with their scores."""
    return sampling.HasField("beam_width") or sampling.best_of > (sampling.n or 1)
