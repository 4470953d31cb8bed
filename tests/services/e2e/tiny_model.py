"""A small random LLaMA model with a tokenizer and a chat template of its own, and what transformers says about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

MAX_MODEL_LEN = 512
VOCAB_SIZE = 384
SPECIAL_TOKENS = ["<s>", "<|end|>"]

_TEXT = """
A printer folds a sheet three times and has an octavo: eight leaves, sixteen pages. Fold it twice and it is a quarto,
fold it once and it is a folio. Leaves are gathered, sewn and bound; a page that is missing is noticed by its number.
Äpfel, Öl und Übermut; naïve café; été à Zürich; 印刷所で紙を三回折る; Книга лежит на столе; 🐙 📖 — “quoted”.
The sheet is folded, the fold is cut, the page is turned, and the reader reads on until the end of the book.
"""
_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def save_tiny_model(folder: Path) -> None:
    """Writes the model in the Hugging Face layout, fp32. The same each time."""
    tokenizer = _train_tokenizer()
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_MODEL_LEN,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        dtype="float32",
    )
    model = transformers.LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # large enough that answers differ, and that the likeliest token leads clearly
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    model.generation_config = transformers.GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(folder)


def _train_tokenizer() -> transformers.PreTrainedTokenizerFast:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([_TEXT], trainer)
    assert backend.get_vocab_size() == VOCAB_SIZE
    start = SPECIAL_TOKENS[0]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{start} $A", special_tokens=[(start, backend.token_to_id(start))]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=start, eos_token=SPECIAL_TOKENS[1], clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


Beam = tuple[list[int], float]
"""Token ids and score."""


class Reference:
    """What transformers makes of the model: the right answers."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

    @property
    def eos_token_id(self) -> int:
        token_id: int = self.tokenizer.eos_token_id
        return token_id

    def encode(self, text: str) -> list[int]:
        token_ids: list[int] = self.tokenizer(text)["input_ids"]
        return token_ids

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        encoded = self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=True)
        token_ids: list[int] = encoded["input_ids"]
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    @torch.inference_mode()
    def greedy(
        self, prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool = True, min_tokens: int = 0
    ) -> list[int]:
        """The answer's token ids, the end of sequence included."""
        output = self._model.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=max_tokens,
            min_new_tokens=min_tokens or None,
            eos_token_id=None if ignore_eos else self.eos_token_id,
            pad_token_id=self.eos_token_id,
        )
        token_ids: list[int] = output[0, len(prompt) :].tolist()
        return token_ids

    @torch.inference_mode()
    def beams(self, prompt: Sequence[int], max_tokens: int, width: int, n: int, **options: Any) -> list[Beam]:
        """The n best beams, best first, the end of sequence included.

        Args:
            options: `length_penalty`, `early_stopping`.
        """
        output = self._model.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=max_tokens,
            num_beams=width,
            num_return_sequences=n,
            eos_token_id=self.eos_token_id,
            pad_token_id=-1,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        outputs = output.sequences[:, len(prompt) :].tolist()
        beams = [[token_id for token_id in token_ids if token_id >= 0] for token_ids in outputs]
        return list(zip(beams, output.sequences_scores.tolist(), strict=True))

    @torch.inference_mode()
    def logprobs(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Natural log probabilities of the next token after each prefix, [tokens, vocabulary]."""
        logits: torch.Tensor = self._model(torch.tensor([list(token_ids)])).logits[0]
        return torch.log_softmax(logits.float(), dim=-1)
