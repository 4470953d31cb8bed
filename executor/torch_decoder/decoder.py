"""The decoder: one transformer for every described family, over a flat row of tokens without padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from executor.attention.interface import AttentionParams, AttentionPlan, Cache
from executor.description import Activation, DecoderDescription, LearnedPositions, Norm, RotaryPositions
from executor.rotary import Angles, RotaryEmbedding
from executor.tensor_parallel import ALONE, Ranks
from executor.weights import Shard


@dataclass(frozen=True, slots=True)
class DecoderInput:
    """The tokens of one step, those of all rows one after another; all int64.

    Attributes:
        token_ids: [tokens].
        positions: [tokens], from 0, in each token's sequence.
        prompt_lengths: [tokens], prompt length of each token's sequence.
        sampled: [samples], indices of the tokens whose logits are wanted.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    prompt_lengths: torch.Tensor
    sampled: torch.Tensor


class Decoder(nn.Module):
    """A decoder-only transformer as its description says. Made without weights; `load` gives it some.

    Args:
        shard: the part of the model that it has.
        ranks: that have the other parts.
    """

    def __init__(self, shard: Shard, ranks: Ranks = ALONE) -> None:
        super().__init__()
        model = shard.model
        self.description = model
        self._shard = shard
        self._ranks = ranks
        self.rotary = RotaryEmbedding(model.positions) if isinstance(model.positions, RotaryPositions) else None
        with torch.device("meta"):
            self.embedding = _embedding(model.vocab_size, model.embedding_size)
            self.position_embedding = (
                _embedding(model.positions.num_embeddings, model.hidden_size)
                if isinstance(model.positions, LearnedPositions)
                else None
            )
            projects = model.projects_embeddings
            self.project_in = nn.Linear(model.embedding_size, model.hidden_size, bias=False) if projects else None
            self.project_out = nn.Linear(model.hidden_size, model.embedding_size, bias=False) if projects else None
            self.layers = nn.ModuleList(DecoderLayer(model, ranks) for _ in range(model.num_layers))
            self.final_norm = _norm(model.norm, model.hidden_size) if model.final_norm else None
            tied = model.tied_embeddings
            self.head = None if tied else nn.Linear(model.embedding_size, model.vocab_size, bias=False)

    def load(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Takes the tensors as its parameters, without a copy. Every parameter must be there, and nothing else."""
        self.load_state_dict(parameters, assign=True)
        self.requires_grad_(False)

    def forward(self, step: DecoderInput, caches: Sequence[Cache], attention: AttentionPlan[Cache]) -> torch.Tensor:
        """Writes the tokens' keys and values; returns the logits of the sampled ones, [samples, vocab] in float32.

        Of several ranks, only the first one's logits mean anything.
        """
        return self.logits(self.layers_output(step, caches, attention)[step.sampled])

    def layers_output(
        self, step: DecoderInput, caches: Sequence[Cache], attention: AttentionPlan[Cache]
    ) -> torch.Tensor:
        """Writes the tokens' keys and values; returns what the last layer makes of each, [tokens, hidden_size]."""
        hidden = self._embed(step)
        angles = self.rotary.angles(step.positions, step.prompt_lengths) if self.rotary else None
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden = layer(hidden, angles, cache, attention)
        return hidden

    def _embed(self, step: DecoderInput) -> torch.Tensor:
        hidden = self._ranks.embed(step.token_ids, self.embedding.weight, self._shard.vocabulary)
        if self.project_in is not None:
            hidden = self.project_in(hidden)
        if self.position_embedding is not None:
            assert isinstance(self.description.positions, LearnedPositions)
            hidden = hidden + self.position_embedding(step.positions + self.description.positions.offset)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of tokens for which the last layer gives this, [samples, vocab] in float32; see `forward`."""
        if self.final_norm is not None:
            hidden = self.final_norm(hidden)
        if self.project_out is not None:
            hidden = self.project_out(hidden)
        head = self.embedding if self.head is None else self.head
        return self._ranks.gather_logits(F.linear(hidden, head.weight), self._shard.vocab_size).float()


class DecoderLayer(nn.Module):
    """Attention and MLP, each with its norm and residual connection.

    What ranks compute of either is a term of a sum.
    """

    def __init__(self, model: DecoderDescription, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks
        self.pre_norm = model.norm_place == "pre"
        self.attention_norm = _norm(model.norm, model.hidden_size)
        self.mlp_norm = _norm(model.norm, model.hidden_size)

        self.num_heads, self.num_kv_heads, self.head_dim = model.num_heads, model.num_kv_heads, model.head_dim
        self.attention = AttentionParams(model.attention_scale)
        queries = model.num_heads * model.head_dim
        qkv = queries + 2 * model.num_kv_heads * model.head_dim
        self.qkv = nn.Linear(model.hidden_size, qkv, bias=model.attention_bias)
        self.attention_out = nn.Linear(queries, model.hidden_size, bias=model.attention_bias)

        self.activation = _ACTIVATIONS[model.activation]
        self.gated = model.gated_mlp
        inner = model.intermediate_size * (2 if model.gated_mlp else 1)
        self.mlp_in = nn.Linear(model.hidden_size, inner, bias=model.mlp_bias)
        self.mlp_out = nn.Linear(model.intermediate_size, model.hidden_size, bias=model.mlp_bias)

    def forward(
        self, hidden: torch.Tensor, angles: Angles | None, cache: Cache, attention: AttentionPlan[Cache]
    ) -> torch.Tensor:
        if self.pre_norm:
            hidden = hidden + self._attend(self.attention_norm(hidden), angles, cache, attention)
            return hidden + self._mlp(self.mlp_norm(hidden))
        hidden = self.attention_norm(hidden + self._attend(hidden, angles, cache, attention))
        normed: torch.Tensor = self.mlp_norm(hidden + self._mlp(hidden))
        return normed

    def _attend(
        self, hidden: torch.Tensor, angles: Angles | None, cache: Cache, attention: AttentionPlan[Cache]
    ) -> torch.Tensor:
        heads = self.qkv(hidden).view(len(hidden), -1, self.head_dim)
        queries, keys, values = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        # All rows' keys and values are written before any row attends: a row may read a block of another row.
        if angles is None:
            attention.write(cache, keys, values)
        else:
            queries = attention.rotate_and_write(cache, queries, keys, values, angles)
        attended = attention.attend(cache, queries, self.attention)
        return self._ranks.sum(self.attention_out(attended.reshape(len(hidden), -1)))

    def _mlp(self, hidden: torch.Tensor) -> torch.Tensor:
        inner = self.mlp_in(hidden)
        if self.gated:
            gate, up = inner.chunk(2, dim=-1)
            inner = self.activation(gate) * up
        else:
            inner = self.activation(inner)
        return self._ranks.sum(self.mlp_out(inner))


def _gelu_tanh(values: torch.Tensor) -> torch.Tensor:
    return F.gelu(values, approximate="tanh")


_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
}


def _embedding(rows: int, size: int) -> nn.Embedding:
    # One made otherwise has random numbers first: to make up those of no tensor, torch imports things for two seconds.
    table: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, size))  # type: ignore[no-untyped-call]
    return table


def _norm(norm: Norm, size: int) -> nn.Module:
    kind = nn.LayerNorm if norm.kind == "layer_norm" else nn.RMSNorm
    return kind(size, eps=norm.epsilon, elementwise_affine=norm.affine)
