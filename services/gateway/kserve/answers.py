"""What has been generated for a request, and responses with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.kserve import inference_pb2
from octavo.v1 import common_pb2
from octavo.v1 import inference_pb2 as generation_pb2
from services.gateway.kserve.requests import (
    CUMULATIVE_LOGPROB,
    FINISH_REASON,
    NUM_INPUT_TOKENS,
    NUM_OUTPUT_TOKENS,
    OUTPUTS,
    TEXT_OUTPUT,
    VERSION,
    InferRequest,
)
from services.gateway.kserve.tensors import Tensor, add_outputs

_REASONS = {
    common_pb2.FINISH_REASON_UNSPECIFIED: b"",
    common_pb2.FINISH_REASON_STOP: b"stop",
    common_pb2.FINISH_REASON_LENGTH: b"length",
}


class Answer:
    """All sequences of all prompts of one request.

    Args:
        model_name: that clients know.
        prompt_lengths: tokens of each prompt, where they are wanted.
    """

    def __init__(self, request: InferRequest, model_name: str, prompt_lengths: Sequence[int] = ()) -> None:
        self._request = request
        self._model_name = model_name
        self._prompt_lengths = prompt_lengths
        count = len(request.generations) * request.num_sequences
        self._texts = [""] * count
        self._num_tokens = [0] * count
        self._logprobs = [0.0] * count
        self._reasons = [b""] * count
        self._running = len(request.generations)
        if request.repeats_input:
            self._texts = [text for text in request.texts for _ in range(request.num_sequences)]

    @property
    def complete(self) -> bool:
        """Every prompt has its whole answer."""
        return not self._running

    def add(self, prompt: int, response: generation_pb2.GenerateResponse) -> None:
        """Takes in what has come for a prompt."""
        index = prompt * self._request.num_sequences + response.sequence_index
        self._texts[index] += response.text
        self._num_tokens[index] += len(response.token_ids)
        self._logprobs[index] += sum(each.logprob for each in response.logprobs)
        if response.finish_reason:
            self._reasons[index] = _REASONS.get(response.finish_reason, b"")
        self._running -= response.HasField("usage")

    def take(self) -> inference_pb2.ModelInferResponse:
        """A response with what is new since the last one; cumulative are log probabilities and reasons."""
        response = inference_pb2.ModelInferResponse(
            model_name=self._model_name, model_version=VERSION, id=self._request.id
        )
        add_outputs(response, self._tensors(), raw=self._request.raw)
        self._texts = [""] * len(self._texts)
        self._num_tokens = [0] * len(self._num_tokens)
        return response

    def _tensors(self) -> list[Tensor]:
        of_prompts = {NUM_INPUT_TOKENS: self._prompt_lengths}
        of_sequences: Mapping[str, Sequence[Any]] = {
            TEXT_OUTPUT: [text.encode() for text in self._texts],
            FINISH_REASON: self._reasons,
            CUMULATIVE_LOGPROB: self._logprobs,
            NUM_OUTPUT_TOKENS: self._num_tokens,
        }
        return [
            Tensor(name, OUTPUTS[name], self._request.shape, of_prompts[name])
            if name in of_prompts
            else Tensor(name, OUTPUTS[name], self._request.output_shape, of_sequences[name])
            for name in self._request.outputs
        ]
