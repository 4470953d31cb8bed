"""Tiny random models, and a stand-in for the KV manager that drives an executor through step batches."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from executor.executor import Executor
from executor.guides.guide import Guide
from executor.loader import load_executor
from executor.model_runner import Row
from executor.native import Crew, load_library
from executor.native.library import runnable_levels
from executor.native.sampling import NativeSampler
from executor.sampling.draw import Draw
from executor.sampling.sampler import Sampled
from executor.sampling.samplers import Sampler, TorchSampler
from executor.sequences import SequenceState
from executor.settings import ExecutorSettings
from executor.step import NewSequence, SamplingParams, StepBatch, StepResult

GREEDY = SamplingParams(temperature=0)


def randomised(model: transformers.PreTrainedModel, seed: int = 0) -> transformers.PreTrainedModel:
    """Every parameter random, biases and norms too, so that a parameter that is left out or swapped shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.2 * noise if is_norm else 0.25 * noise)
    return model.eval()


def _llama_config(**changes: Any) -> transformers.LlamaConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    return transformers.LlamaConfig(**(sizes | changes))


@pytest.fixture(scope="session")
def llama_config() -> Callable[..., transformers.LlamaConfig]:
    return _llama_config


@pytest.fixture(scope="session")
def save_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, transformers.PreTrainedModel]]:
    """Makes a random model of a configuration and saves it as safetensors."""

    def save(config: transformers.PretrainedConfig, **save_options: Any) -> tuple[Path, transformers.PreTrainedModel]:
        model = randomised(transformers.AutoModelForCausalLM.from_config(config))
        folder = tmp_path_factory.mktemp("model")
        model.save_pretrained(folder, **save_options)
        return folder, model

    return save


@pytest.fixture(scope="session")
def llama(save_model: Callable[..., Any]) -> tuple[Path, transformers.PreTrainedModel]:
    folder, model = save_model(_llama_config())
    return folder, model


BOTH_DECODERS = pytest.mark.parametrize(
    "decoder",
    ["torch", pytest.param("native", marks=pytest.mark.skipif(not runnable_levels(), reason="no kernels were built"))],
    indirect=True,
)


@pytest.fixture
def decoder(request: pytest.FixtureRequest) -> str:
    """The decoder that computes the executors of a test; modules marked with BOTH_DECODERS run with each."""
    return getattr(request, "param", "torch")


@pytest.fixture
def load(decoder: str) -> Callable[..., Executor]:
    def load(folder: Path, **settings: Any) -> Executor:
        defaults = {"kv_memory": "2MiB", "device": "cpu", "decoder": decoder}
        return load_executor(ExecutorSettings(model=folder, **(defaults | settings)))

    return load


@pytest.fixture
def memory_of(llama: tuple[Path, Any], load: Callable[..., Executor]) -> Callable[[int], str]:
    """Memory for so many blocks of the tiny LLaMA, as a setting."""
    return lambda num_blocks: f"{num_blocks * load(llama[0]).info.bytes_per_block}B"


@pytest.fixture
def all_logits() -> Callable[[Executor, list[int]], torch.Tensor]:
    """Logits at every position of a prompt that is computed in one step, [tokens, vocab]."""

    @torch.inference_mode()
    def run(executor: Executor, tokens: list[int]) -> torch.Tensor:
        num_blocks = -(-len(tokens) // executor.info.block_size)
        new = NewSequence(0, tokens, len(tokens), 0, list(range(num_blocks)), GREEDY)
        return executor._runner.run([Row(SequenceState.start(new), len(tokens))], every_token=True)

    return run


@dataclass
class Driver:
    """Gives every sequence blocks of its own, in a shuffled order, and runs steps."""

    executor: Executor
    seed: int = 0
    epoch: int = 1
    steps: int = 0
    tokens: dict[int, list[int]] = field(default_factory=dict)
    computed: dict[int, int] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = list(range(self.executor.info.num_blocks))
        random.Random(self.seed).shuffle(self.free)

    def batch(self, **fields: Any) -> StepBatch:
        return StepBatch(epoch=self.epoch, step=self.steps + 1, **fields)

    def step(self, batch: StepBatch) -> StepResult:
        result = self.executor.step(batch)
        self.steps += 1
        for sequence_id, count in zip(batch.row_sequence_ids, batch.row_num_tokens, strict=True):
            self.computed[sequence_id] += count
        for sequence_id, token in zip(result.sequence_ids, result.token_ids, strict=True):
            self.tokens[sequence_id].append(token)
        return result

    def new(
        self,
        sequence_id: int,
        tokens: list[int],
        sampling: SamplingParams = GREEDY,
        *,
        prompt_length: int | None = None,
        num_computed: int = 0,
        table: list[int] | None = None,
        num_candidates: int = 0,
        ranked: bool = False,
    ) -> NewSequence:
        self.tokens[sequence_id] = list(tokens)
        self.computed[sequence_id] = num_computed
        self.tables[sequence_id] = list(table or [])
        return NewSequence(
            sequence_id=sequence_id,
            token_ids=list(tokens),
            prompt_length=prompt_length or len(tokens),
            num_computed=num_computed,
            block_table=list(table or []),
            sampling=sampling,
            num_candidates=num_candidates,
            ranked=ranked,
        )

    def edits(self, sequence_id: int, count: int) -> list[tuple[int, int, int]]:
        """Appends blocks until the next `count` tokens fit."""
        table, edits = self.tables[sequence_id], []
        while len(table) * self.executor.info.block_size < self.computed[sequence_id] + count:
            table.append(self.free.pop())
            edits.append((sequence_id, len(table) - 1, table[-1]))
        return edits

    def run(self, counts: dict[int, int], new: list[NewSequence] | None = None, **fields: Any) -> StepResult:
        """One step of the given number of tokens of each sequence, with the blocks they need."""
        edits = [edit for sequence_id, count in counts.items() for edit in self.edits(sequence_id, count)]
        return self.step(
            self.batch(
                new_sequences=new or [],
                row_sequence_ids=list(counts),
                row_num_tokens=list(counts.values()),
                table_edits=edits,
                **fields,
            )
        )

    def generate(
        self, prompts: list[list[int]], max_tokens: int, sampling: list[SamplingParams] | None = None, chunk: int = 1000
    ) -> list[list[int]]:
        """Output tokens of all prompts, batched together, prefilled in chunks of at most `chunk` tokens."""
        new = [self.new(i, prompt, GREEDY if sampling is None else sampling[i]) for i, prompt in enumerate(prompts)]
        active = set(range(len(prompts)))
        while active:
            counts = {i: min(chunk, len(self.tokens[i]) - self.computed[i]) for i in sorted(active)}
            self.run(counts, new)
            new = []
            active = {i for i in active if len(self.tokens[i]) - len(prompts[i]) < max_tokens}
        return [self.tokens[i][len(prompt) :] for i, prompt in enumerate(prompts)]


@pytest.fixture
def drive() -> type[Driver]:
    return Driver


def random_tokens(count: int, seed: int, vocab_size: int = 96) -> list[int]:
    return random.Random(seed).choices(range(3, vocab_size), k=count)


@pytest.fixture
def prompt() -> Callable[..., list[int]]:
    return random_tokens


@pytest.fixture(params=["torch", *runnable_levels()])
def make_sampler(request: pytest.FixtureRequest) -> Callable[[int], Sampler]:
    """Makes a sampler for a vocabulary: the one in torch, and the native one of each level that runs here."""
    if request.param == "torch":
        return lambda _: TorchSampler()
    library = load_library(request.param)
    crew = Crew(library, 2)
    return lambda vocab_size: NativeSampler(library, crew, vocab_size)


def _sequence(draw: Draw, num_candidates: int = 0) -> SequenceState:
    """A sequence whose next draw this is."""
    tokens = array("q", draw.token_ids)
    return SequenceState(
        sequence_id=0,
        token_ids=tokens,
        prompt_length=len(tokens) - draw.output_position,
        num_computed=len(tokens),
        block_table=array("q"),
        sampling=draw.sampling,
        sample_index=draw.sample_index,
        num_candidates=num_candidates,
        ranked=draw.ranked,
        guide=None if draw.allowed is None else Guide(None, draw.allowed),
    )


@pytest.fixture
def sample(make_sampler: Callable[[int], Sampler]) -> Callable[..., Sampled]:
    def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> Sampled:
        sampler = make_sampler(logits.shape[1])
        return sampler.sample(logits, [draw.row for draw in draws], [_sequence(draw) for draw in draws]).finish()

    return sample


@pytest.fixture
def most_likely(make_sampler: Callable[[int], Sampler]) -> Callable[..., list[tuple[list[int], list[float]]]]:
    def most_likely(
        logits: torch.Tensor, draws: Sequence[Draw], counts: Sequence[int]
    ) -> list[tuple[list[int], list[float]]]:
        sequences = [_sequence(draw, count) for draw, count in zip(draws, counts, strict=True)]
        return make_sampler(logits.shape[1]).candidates(logits, [draw.row for draw in draws], sequences)()

    return most_likely
