"""ModelInfer requests from the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.request import GenerationRequest, TextPrompt
from octavo.kserve import inference_pb2
from services.gateway.kserve.errors import invalid, not_found
from services.gateway.kserve.settings import Settings, decode_settings
from services.gateway.kserve.tensors import Tensor, decode_inputs
from services.gateway.kserve.values import as_text

TEXT_INPUT = "text_input"
TEXT_DATATYPE = "BYTES"

TEXT_OUTPUT = "text_output"
FINISH_REASON = "finish_reason"
CUMULATIVE_LOGPROB = "cumulative_logprob"
NUM_INPUT_TOKENS = "num_input_tokens"
NUM_OUTPUT_TOKENS = "num_output_tokens"

OUTPUTS = {
    TEXT_OUTPUT: "BYTES",
    FINISH_REASON: "BYTES",
    CUMULATIVE_LOGPROB: "FP32",
    NUM_INPUT_TOKENS: "UINT32",
    NUM_OUTPUT_TOKENS: "UINT32",
}
"""Names and datatypes."""
VERSION = "1"
"""The only one of every model."""

_LONGEST_INTERVAL = 60.0
"""Seconds of which tokens come together where nobody reads them before the end."""

_LOWEST_PRIORITY = 100

MAX_SEQUENCES = 256
"""Of all prompts of a request together: each response of a stream has a place for each."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request for text.

    Attributes:
        id: comes back in each response.
        model_name: empty: the only model that is served.
        generations: one for each prompt.
        given_as: what the client called sampling parameters.
        outputs: their names, in the order in which they are wanted.
        stream: text is wanted as it comes.
        repeats_input: the text of a response begins with its prompt.
        shape: of text_input.
        num_sequences: for each prompt.
        raw: outputs are wanted raw, as the inputs were.
    """

    id: str
    model_name: str
    generations: Sequence[GenerationRequest]
    given_as: Mapping[str, str]
    outputs: Sequence[str]
    stream: bool
    repeats_input: bool
    shape: tuple[int, ...]
    num_sequences: int
    raw: bool

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of outputs with an element for each sequence."""
        if len(self.shape) == 1:
            return (self.shape[0] * self.num_sequences,)
        return (self.shape[0], self.num_sequences)

    @property
    def texts(self) -> list[str]:
        """The prompts."""
        return [each.prompt.text for each in self.generations if isinstance(each.prompt, TextPrompt)]


def decode_request(
    message: inference_pb2.ModelInferRequest, seconds_left: float | None, may_stream: bool = True
) -> InferRequest:
    """Reads a request.

    Args:
        seconds_left: until the call's deadline, if it has one.
        may_stream: there can be several responses.

    Raises:
        RpcError: INVALID_ARGUMENT, naming the input, parameter or field; NOT_FOUND: no such version.
    """
    check_version("model_version", message.model_version)
    inputs = decode_inputs(message)
    if TEXT_INPUT not in inputs:
        raise invalid(TEXT_INPUT, "is missing")
    text_input = inputs.pop(TEXT_INPUT)
    texts = _texts(text_input)
    _check_sequences(len(texts), 1)
    settings = decode_settings(inputs.values(), message.parameters, len(texts))
    stream = _of_all(settings, "stream", False)
    if stream and not may_stream:
        raise invalid("stream", "must be false or absent: ModelInfer has one response, ModelStreamInfer streams")
    excludes_input = _of_all(settings, "exclude_input_in_output", stream)
    if stream and not excludes_input:
        raise invalid("exclude_input_in_output", "must be true or absent where text is streamed")
    outputs = _outputs(message, settings)
    num_sequences = _num_sequences(settings)
    _check_sequences(len(texts), num_sequences)
    return InferRequest(
        id=message.id,
        model_name=message.model_name,
        generations=[
            _generation(message, text, each, stream, CUMULATIVE_LOGPROB in outputs, seconds_left)
            for text, each in zip(texts, settings, strict=True)
        ],
        given_as=settings[0].given_as,
        outputs=outputs,
        stream=stream,
        repeats_input=not excludes_input,
        shape=text_input.shape,
        num_sequences=num_sequences,
        raw=bool(message.raw_input_contents),
    )


def check_version(field: str, version: str) -> None:
    """Raises RpcError, NOT_FOUND, unless there is such a version."""
    if version not in ("", VERSION):
        raise not_found(field, f"there is version {VERSION} only, not {version!r}")


def _texts(tensor: Tensor) -> list[str]:
    if tensor.datatype != TEXT_DATATYPE:
        raise invalid(TEXT_INPUT, f"datatype must be {TEXT_DATATYPE}, is {tensor.datatype}")
    if len(tensor.shape) > 2 or tensor.shape[1:] not in ((), (1,)):
        raise invalid(TEXT_INPUT, f"shape must be [prompts] or [prompts, 1], is {list(tensor.shape)}")
    return [as_text(TEXT_INPUT, each) for each in tensor.values]


def _of_all(settings: Sequence[Settings], name: str, default: bool) -> bool:
    """A setting that holds for the whole request."""
    values = {bool(each.others.get(name, default)) for each in settings}
    if len(values) > 1:
        raise invalid(name, "must be the same for all prompts of a request")
    return values.pop()


def _num_sequences(settings: Sequence[Settings]) -> int:
    counts = {each.sampling.n or 1 for each in settings}
    if len(counts) > 1:
        raise invalid("n", "must be the same for all prompts of a request")
    return max(1, counts.pop())


def _check_sequences(num_prompts: int, num_sequences: int) -> None:
    if num_prompts * num_sequences > MAX_SEQUENCES:
        what = f"{num_prompts} prompts with {num_sequences} sequences each are too many"
        raise invalid(TEXT_INPUT, f"{what}: at most {MAX_SEQUENCES} in all")


def _outputs(message: inference_pb2.ModelInferRequest, settings: Sequence[Settings]) -> list[str]:
    for index, output in enumerate(message.outputs):
        if output.name not in OUTPUTS:
            raise invalid(f"outputs[{index}].name", f"must be one of {', '.join(OUTPUTS)}, is {output.name!r}")
        if output.parameters:
            raise invalid(f"outputs[{index}].parameters", f"{min(output.parameters)!r} is not taken")
    names = [output.name for output in message.outputs]
    if len(set(names)) < len(names):
        raise invalid("outputs", "must be different ones")
    return names or [name for name in OUTPUTS if name == TEXT_OUTPUT or _of_all(settings, f"return_{name}", False)]


def _generation(
    message: inference_pb2.ModelInferRequest,
    text: str,
    settings: Settings,
    stream: bool,
    with_logprobs: bool,
    seconds_left: float | None,
) -> GenerationRequest:
    return GenerationRequest(
        prompt=TextPrompt(text),
        sampling=replace(settings.sampling, logprobs=0 if with_logprobs else None),
        model=message.model_name,
        timeout=_timeout(settings.others, seconds_left),
        priority=_priority(settings.others),
        response_interval=None if stream else _LONGEST_INTERVAL,
    )


def _timeout(parameters: Mapping[str, Any], seconds_left: float | None) -> float | None:
    microseconds = parameters.get("timeout")
    if microseconds is not None and microseconds < 0:
        raise invalid("timeout", f"must be at least 0 microseconds, is {microseconds}")
    limits = [microseconds / 1e6] if microseconds else []
    if seconds_left is not None:
        limits.append(max(seconds_left, 1e-6))
    return min(limits, default=None)


def _priority(parameters: Mapping[str, Any]) -> int:
    """Lower goes first, which is the other way round here."""
    priority = int(parameters.get("priority", 0))
    if not 0 <= priority <= _LOWEST_PRIORITY:
        raise invalid("priority", f"must be from 0, which goes first, to {_LOWEST_PRIORITY}, is {priority}")
    return -priority
