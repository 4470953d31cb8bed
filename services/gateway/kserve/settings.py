"""What can be set for a request beside its text: the names that clients of Triton's vLLM and TensorRT-LLM backends use.

Each may be an input or a parameter of the request; sampling parameters may be in the JSON of `sampling_parameters`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.request import SamplingParams
from octavo.kserve import inference_pb2
from services.gateway.kserve.errors import invalid
from services.gateway.kserve.tensors import Tensor
from services.gateway.kserve.values import (
    as_beam_width,
    as_biases,
    as_ending,
    as_flag,
    as_guide,
    as_int32,
    as_int32s,
    as_integer,
    as_number,
    as_object,
    as_text,
    as_texts,
    as_top_k,
)

_INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
_TAKEN = {
    "BOOL": ("BOOL",),
    "INT32": _INTEGERS,
    "UINT64": _INTEGERS,
    "FP32": ("FP32", "FP64"),
    "BYTES": ("BYTES",),
}
"""By the datatype that is declared, those that are taken."""

SAMPLING_PARAMETERS = "sampling_parameters"


@dataclass(frozen=True, slots=True)
class Setting:
    """One of them.

    Attributes:
        datatype: of the input.
        read: makes the value of what was given.
        sampling: the sampling parameter that it is, if it is one.
        is_list: there may be several for each prompt.
    """

    datatype: str
    read: Callable[[str, Any], Any]
    sampling: str = ""
    is_list: bool = False


_SAMPLING = {
    "max_tokens": Setting("INT32", as_int32, "max_tokens"),
    "min_tokens": Setting("INT32", as_int32, "min_tokens"),
    "min_length": Setting("INT32", as_int32, "min_tokens"),
    "temperature": Setting("FP32", as_number, "temperature"),
    "top_p": Setting("FP32", as_number, "top_p"),
    "top_k": Setting("INT32", as_top_k, "top_k"),
    "min_p": Setting("FP32", as_number, "min_p"),
    "n": Setting("INT32", as_int32, "n"),
    "best_of": Setting("INT32", as_int32, "best_of"),
    "beam_width": Setting("INT32", as_beam_width, "beam_width"),
    "length_penalty": Setting("FP32", as_number, "length_penalty"),
    "len_penalty": Setting("FP32", as_number, "length_penalty"),
    "early_stopping": Setting("BOOL", as_ending, "early_stopping"),
    "stop": Setting("BYTES", as_texts, "stop", is_list=True),
    "stop_words": Setting("BYTES", as_texts, "stop", is_list=True),
    "stop_token_ids": Setting("INT32", as_int32s, "stop_token_ids", is_list=True),
    "seed": Setting("UINT64", as_integer, "seed"),
    "random_seed": Setting("UINT64", as_integer, "seed"),
    "ignore_eos": Setting("BOOL", as_flag, "ignore_eos"),
    "skip_special_tokens": Setting("BOOL", as_flag, "skip_special_tokens"),
    "presence_penalty": Setting("FP32", as_number, "presence_penalty"),
    "frequency_penalty": Setting("FP32", as_number, "frequency_penalty"),
    "repetition_penalty": Setting("FP32", as_number, "repetition_penalty"),
    "logit_bias": Setting("BYTES", as_biases, "logit_bias"),
    "guided_decoding": Setting("BYTES", as_guide, "guide"),
}


def _as_sampling_parameters(name: str, value: Any) -> dict[str, Any]:
    """A JSON object, with its values read."""
    given = {each: content for each, content in as_object(name, value).items() if content is not None}
    for unknown in given.keys() - _SAMPLING.keys():
        raise invalid(f"{name}.{unknown}", "there is no such sampling parameter")
    return {each: _SAMPLING[each].read(each, content) for each, content in given.items()}


SETTINGS = {
    "stream": Setting("BOOL", as_flag),
    "exclude_input_in_output": Setting("BOOL", as_flag),
    "return_finish_reason": Setting("BOOL", as_flag),
    "return_cumulative_logprob": Setting("BOOL", as_flag),
    "return_num_input_tokens": Setting("BOOL", as_flag),
    "return_num_output_tokens": Setting("BOOL", as_flag),
    SAMPLING_PARAMETERS: Setting("BYTES", _as_sampling_parameters),
    **_SAMPLING,
}

_PARAMETERS = {
    "priority": Setting("UINT64", as_int32),
    "timeout": Setting("INT64", as_integer),
    "triton_enable_empty_final_response": Setting("BOOL", as_flag),
}
"""What is a parameter of the request only, as Triton has it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one prompt.

    Attributes:
        sampling: its sampling parameters.
        given_as: what the client called them.
        others: everything else, by name.
    """

    sampling: SamplingParams
    given_as: Mapping[str, str]
    others: Mapping[str, Any]


def decode_settings(
    tensors: Iterable[Tensor], parameters: Mapping[str, inference_pb2.InferParameter], num_prompts: int
) -> list[Settings]:
    """The settings of each prompt.

    Args:
        tensors: the inputs beside the text.
        parameters: of the request.

    Raises:
        RpcError: INVALID_ARGUMENT, naming the one at fault.
    """
    of_all = dict(_from_parameters(parameters))
    of_each: list[dict[str, Any]] = [{} for _ in range(num_prompts)]
    for tensor in tensors:
        if tensor.name in of_all:
            raise invalid(tensor.name, "is given twice, as an input and as a parameter")
        values = _from_tensor(tensor, num_prompts)
        if len(values) == 1:
            of_all[tensor.name] = values[0]
        else:
            for given, value in zip(of_each, values, strict=True):
                given[tensor.name] = value
    return [_sorted(of_all | given) for given in of_each]


def _from_parameters(parameters: Mapping[str, inference_pb2.InferParameter]) -> Iterable[tuple[str, Any]]:
    for name, parameter in parameters.items():
        setting = SETTINGS.get(name) or _PARAMETERS.get(name)
        if setting is None:
            raise invalid(as_text("parameters", name), "there is no such parameter")
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise invalid(name, "has no value")
        yield name, setting.read(name, getattr(parameter, choice))


def _from_tensor(tensor: Tensor, num_prompts: int) -> list[Any]:
    """One value for all prompts, or one for each."""
    setting = SETTINGS.get(tensor.name)
    if setting is None:
        raise invalid(tensor.name, "the model has no such input")
    if tensor.datatype not in _TAKEN[setting.datatype]:
        raise invalid(tensor.name, f"datatype must be {setting.datatype}, is {tensor.datatype}")
    shape, values = tensor.shape, list(tensor.values)
    if setting.is_list:
        rows, columns = (1, shape[0]) if len(shape) == 1 else (shape[0], len(values) // shape[0])
        values = [values[start : start + columns] for start in range(0, rows * columns, columns)]
    if len(shape) > 2 or len(values) not in (1, num_prompts):
        raise invalid(
            tensor.name, f"shape must be of one value, or one for each of {num_prompts} prompts, is {list(shape)}"
        )
    return [setting.read(tensor.name, value) for value in values]


def _sorted(values: Mapping[str, Any]) -> Settings:
    """Sampling parameters, wherever they were given, and the rest."""
    sampling: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    others = {name: value for name, value in values.items() if name not in _SAMPLING}
    alone = {name: value for name, value in values.items() if name in _SAMPLING}
    for name, value in [*alone.items(), *others.pop(SAMPLING_PARAMETERS, {}).items()]:
        parameter = _SAMPLING[name].sampling
        if parameter in given_as:
            other = given_as[parameter]
            raise invalid(name, "is given twice" + (f": {other} is the same" if other != name else ""))
        given_as[parameter] = name
        sampling[parameter] = value
    return Settings(SamplingParams(**sampling), given_as, others)
