"""The independent judge's model: `transformers` with the same weights, its modeling code and its tokenizer."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

# OpenMP must not spin. Before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
# transformers shows its own progress where ours is.
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from benchmarks.soak.beam_reference import Searched, search
from octavo.v1 import common_pb2, inference_pb2


def _be_quiet() -> None:
    log: Any = transformers_logging
    log.set_verbosity_error()


class ReferenceTokenizer:
    """`transformers`' tokenizer of a GGUF file."""

    def __init__(self, gguf: Path) -> None:
        _be_quiet()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)

    def encode(self, prompt: inference_pb2.Prompt) -> list[int]:
        """Token ids of a prompt of any form."""
        prompt = _joined(prompt)
        if prompt.HasField("tokens"):
            return list(prompt.tokens.token_ids)
        if prompt.HasField("text"):
            return list(self._tokenizer(prompt.text)["input_ids"])
        messages = [{"role": message.role, "content": message.content} for message in prompt.chat.messages]
        return list(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of all tokens at once."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    @property
    def eos_token_ids(self) -> set[int]:
        """The model's own end-of-sequence tokens."""
        return {self._tokenizer.convert_tokens_to_ids("<|im_end|>")}


def _joined(prompt: inference_pb2.Prompt) -> inference_pb2.Prompt:
    """The prompt without its segments' borders."""
    segments = prompt.segmented.segments
    if not segments:
        return prompt
    if segments[0].HasField("tokens"):
        ids = [token for segment in segments for token in segment.tokens.token_ids]
        return inference_pb2.Prompt(tokens=inference_pb2.TokenPrompt(token_ids=ids))
    if segments[0].HasField("text"):
        return inference_pb2.Prompt(text="".join(segment.text for segment in segments))
    messages = [segment.message for segment in segments]
    return inference_pb2.Prompt(chat=inference_pb2.ChatPrompt(messages=messages))


class ReferenceModel:
    """`transformers`' model of a GGUF file in float32."""

    def __init__(self, gguf: Path) -> None:
        _be_quiet()
        loader: Any = AutoModelForCausalLM
        self._model = loader.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()
        # What ends a sequence is said with each request.
        self._model.generation_config.eos_token_id = None
        self._model.generation_config.pad_token_id = 0

    def logits(self, prompt: Sequence[int], answers: Sequence[Sequence[int]]) -> Mapping[tuple[int, ...], torch.Tensor]:
        """The logits that precede each token of each answer, [tokens, vocab]; equal answers are computed once."""
        different = sorted({tuple(answer) for answer in answers if answer})
        if not different:
            return {}
        longest = max(map(len, different))
        # Padding at the end changes nothing before it: attention is causal.
        rows = [[prompt[-1], *answer[:-1], *[0] * (longest - len(answer))] for answer in different]
        with torch.inference_mode():
            cache = None
            if len(prompt) > 1:  # computed once for all
                cache = self._model(torch.tensor([prompt[:-1]]), logits_to_keep=1, use_cache=True).past_key_values
                cache.batch_repeat_interleave(len(rows))
            logits = self._model(torch.tensor(rows), past_key_values=cache, use_cache=True).logits
        return {answer: logits[index, : len(answer)] for index, answer in enumerate(different)}

    def search(
        self, prompt: Sequence[int], sampling: common_pb2.SamplingParams, stop_token_ids: Collection[int]
    ) -> Searched:
        """The beams that `transformers` finds, best first."""
        return search(self._model, prompt, sampling, stop_token_ids)
