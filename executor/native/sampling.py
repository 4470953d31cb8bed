"""Chooses tokens with the CPU's own kernels, by the definitions of `executor.sampling`."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from executor.native.library import Crew, Library
from executor.native.memory import allocate
from executor.sampling.candidates import CandidateLists
from executor.sampling.random_stream import uniform
from executor.sampling.sampler import Drawn, Sampled
from executor.sequences import SequenceState
from executor.step import Penalties, SamplingParams, TokenLogprobs

_TOKEN, _TOKEN_AND_LOGPROB, _CANDIDATES = range(3)

# A `Draw` of sampling.h: parameters, purpose, number of most likely tokens; then what each draw has of its own: row,
# random number, tokens so far, their number, and how many are output.
_SAME = struct.Struct("=Qqq")
_OWN = struct.Struct("=qdQqq")
_FIRST_DRAWS = 64


class NativeSampler:
    """The sampler of an executor on a CPU (`executor.sampling.samplers.Sampler`). Not thread-safe, as its crew is not.

    Args:
        crew: threads; used where there is enough for them to do.
        vocab_size: of the logits.
    """

    def __init__(self, library: Library, crew: Crew, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._crew = crew
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        self._choose = library.function(
            "octavo_choose", None, pointer, pointer, count, count, ctypes.c_char_p, count, pointer, pointer
        )
        workspace_bytes = library.function("octavo_sampling_workspace_bytes", count, count)
        self._workspace = allocate(crew.threads * workspace_bytes(vocab_size))
        # Touched here: no step should wait for memory.
        self._workspace.fill(0)
        self._choices = _Choices(_FIRST_DRAWS, width=0)

    def sample(self, logits: torch.Tensor, rows: Sequence[int], sequences: Sequence[SequenceState]) -> Drawn:
        sampled = self._sample(logits, rows, sequences)
        return Drawn(None, lambda: sampled)

    def _sample(self, logits: torch.Tensor, rows: Sequence[int], sequences: Sequence[SequenceState]) -> Sampled:
        packed = self._run(logits, rows, sequences)
        choices = self._choices
        tokens: list[int] = choices.tokens[: len(packed)].tolist()
        if not any(each.reports for each in packed):
            return Sampled(tokens, [], [])
        logprobs: list[float] = choices.logprobs[: len(packed)].tolist()
        reports: list[TokenLogprobs | None] = []
        scores: list[float] = []
        if any(each.shows_logprobs for each in packed):
            reports = [
                TokenLogprobs(logprobs[i], *choices.top(i, each.num_top)) if each.shows_logprobs else None
                for i, each in enumerate(packed)
            ]
        if any(sequence.ranked for sequence in sequences):
            scores = [logprobs[i] if sequence.ranked else 0.0 for i, sequence in enumerate(sequences)]
        return Sampled(tokens, reports, scores)

    def candidates(
        self, logits: torch.Tensor, rows: Sequence[int], sequences: Sequence[SequenceState]
    ) -> CandidateLists:
        packed = self._run(logits, rows, sequences)
        lists = [self._choices.top(i, each.num_top) for i, each in enumerate(packed)]
        return lambda: lists

    def _run(self, logits: torch.Tensor, rows: Sequence[int], sequences: Sequence[SequenceState]) -> list[_Packed]:
        if logits.dtype is not torch.float32 or logits.device.type != "cpu" or logits.stride(1) != 1:
            raise ValueError("logits must be rows of float32 in the memory of the CPU")
        if logits.shape[1] != self._vocab_size:
            raise ValueError(f"logits of {logits.shape[1]} tokens for a vocabulary of {self._vocab_size}")
        packed = [sequence.packed_sampling or self._pack(sequence) for sequence in sequences]
        draws = b"".join([_draw(*each) for each in zip(packed, rows, sequences, strict=True)])
        self._choices = self._choices.fitting(len(packed), max([each.num_top for each in packed], default=0))
        self._choose(
            self._crew.handle,
            logits.data_ptr(),
            logits.stride(0),
            self._vocab_size,
            draws,
            len(packed),
            self._workspace.ctypes.data,
            self._choices.address,
        )
        return packed

    def _pack(self, sequence: SequenceState) -> _Packed:
        packed = _Packed(sequence, self._vocab_size)
        sequence.packed_sampling = packed
        return packed


class _Params(ctypes.Structure):
    """`SamplingParams` of sampling.h."""

    _fields_ = (
        ("temperature", ctypes.c_double),
        ("top_p", ctypes.c_double),
        ("top_k", ctypes.c_int64),
        ("min_p", ctypes.c_double),
        ("presence", ctypes.c_double),
        ("frequency", ctypes.c_double),
        ("repetition", ctypes.c_double),
        ("num_biases", ctypes.c_int64),
        ("bias_tokens", ctypes.c_void_p),
        ("biases", ctypes.c_void_p),
        ("min_tokens", ctypes.c_int64),
        ("num_stop_tokens", ctypes.c_int64),
        ("stop_tokens", ctypes.c_void_p),
        ("allowed", ctypes.c_void_p),
    )


class _Packed:
    """What stays the same for all draws of a sequence and of its copies, and where a guide writes what does not.

    Attributes:
        same: part of a draw, in bytes.
        num_top: how many of the most likely tokens are reported.
        reports: the chosen token's log probability is wanted.
        shows_logprobs: with those of the most likely tokens.
        is_random: a draw takes a number from the sequence's stream.
        counts_tokens: a draw depends on the tokens so far or on their number.
    """

    __slots__ = ("_kept", "counts_tokens", "is_random", "num_top", "reports", "same", "shows_logprobs")

    def __init__(self, sequence: SequenceState, vocab_size: int) -> None:
        sampling = sequence.sampling
        self.shows_logprobs = sampling.logprobs is not None and not sequence.num_candidates
        self.reports = self.shows_logprobs or sequence.ranked
        self.num_top = min(sequence.num_candidates or sampling.logprobs or 0, vocab_size)
        self.is_random = sampling.temperature > 0 and not sequence.num_candidates
        self.counts_tokens = sampling.penalties is not None or sampling.min_tokens > 0
        purpose = _CANDIDATES if sequence.num_candidates else _TOKEN_AND_LOGPROB if self.reports else _TOKEN
        params, *arrays = _params(sampling)
        if sequence.guide is not None:
            params.allowed = sequence.guide.allowed.ctypes.data
        # The draws have their addresses.
        self._kept = (params, arrays, sequence.guide)
        self.same = _SAME.pack(ctypes.addressof(params), purpose, self.num_top)


def _params(sampling: SamplingParams) -> tuple[_Params, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """The structure, and the arrays that it points to."""
    penalties = sampling.penalties or Penalties()
    bias_tokens = np.array(list(penalties.logit_bias.keys()), np.int64)
    biases = np.array(list(penalties.logit_bias.values()), np.float32)
    stop_tokens = np.array(sampling.stop_token_ids, np.int64)
    params = _Params(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence=penalties.presence,
        frequency=penalties.frequency,
        repetition=penalties.repetition,
        num_biases=len(biases),
        bias_tokens=bias_tokens.ctypes.data,
        biases=biases.ctypes.data,
        min_tokens=sampling.min_tokens,
        num_stop_tokens=len(stop_tokens),
        stop_tokens=stop_tokens.ctypes.data,
    )
    return params, bias_tokens, biases, stop_tokens


def _draw(packed: _Packed, row: int, sequence: SequenceState) -> bytes:
    number, tokens, num_tokens, num_output_tokens = 0.0, 0, 0, 0
    if packed.is_random or packed.counts_tokens:
        num_output_tokens = sequence.num_output_tokens
        if packed.is_random:
            number = uniform(sequence.sampling.seed, sequence.sample_index, num_output_tokens)
        if packed.counts_tokens:
            tokens, num_tokens = sequence.token_ids.buffer_info()
    return packed.same + _OWN.pack(row, number, tokens, num_tokens, num_output_tokens)


class _ChoicesStruct(ctypes.Structure):
    """`Choices` of sampling.h."""

    _fields_ = (
        ("tokens", ctypes.c_void_p),
        ("logprobs", ctypes.c_void_p),
        ("width", ctypes.c_int64),
        ("top_tokens", ctypes.c_void_p),
        ("top_logprobs", ctypes.c_void_p),
    )


class _Choices:
    """Memory for what comes out of a step."""

    def __init__(self, capacity: int, width: int) -> None:
        self._width = width
        self.tokens = np.zeros(capacity, np.int64)
        self.logprobs = np.zeros(capacity, np.float32)
        self._top_tokens = np.zeros((capacity, width), np.int64)
        self._top_logprobs = np.zeros((capacity, width), np.float32)
        self._struct = _ChoicesStruct(
            tokens=self.tokens.ctypes.data,
            logprobs=self.logprobs.ctypes.data,
            width=width,
            top_tokens=self._top_tokens.ctypes.data,
            top_logprobs=self._top_logprobs.ctypes.data,
        )
        self.address = ctypes.addressof(self._struct)

    def fitting(self, num_draws: int, width: int) -> _Choices:
        """This, or a larger one."""
        capacity = len(self.tokens)
        if num_draws <= capacity and width <= self._width:
            return self
        return _Choices(capacity if num_draws <= capacity else 2 * num_draws, max(width, self._width))

    def top(self, draw: int, count: int) -> tuple[list[int], list[float]]:
        return self._top_tokens[draw, :count].tolist(), self._top_logprobs[draw, :count].tolist()
